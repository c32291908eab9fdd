#!/bin/bash
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
head_node=$nodes_array
echo "on ${nodes_array}"
