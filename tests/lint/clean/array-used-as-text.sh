#!/bin/bash
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
head_node=${nodes_array[0]}
echo "on ${nodes_array[*]}, ${#nodes_array[@]} nodes; $nodes"
