#!/bin/bash
# Tells the DCGM exporter which job uses a GPU: a file for each GPU, with the id of its job.
# A job must not fail because its metrics have no label, so nothing here ends with an error.
folder='@FOLDER@'
mkdir -p "$folder"
IFS=, read -ra gpus <<<"${SLURM_JOB_GPUS:-}"
for gpu in "${gpus[@]}"; do
  printf '%s' "$SLURM_JOB_ID" >"$folder/$gpu"
done
exit 0
