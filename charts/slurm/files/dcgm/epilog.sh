#!/bin/bash
# Removes the files that the prolog wrote, unless another job has the GPU by now.
folder='@FOLDER@'
IFS=, read -ra gpus <<<"${SLURM_JOB_GPUS:-}"
for gpu in "${gpus[@]}"; do
  if [[ "$(cat "$folder/$gpu" 2>/dev/null)" == "$SLURM_JOB_ID" ]]; then
    rm -f "$folder/$gpu"
  fi
done
exit 0
