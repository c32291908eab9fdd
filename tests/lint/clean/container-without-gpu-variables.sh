#!/bin/bash
srun bash -c 'export APPTAINERENV_CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES"; exec apptainer exec --nv --cleanenv train.sif python train.py'
