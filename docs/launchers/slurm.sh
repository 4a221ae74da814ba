#!/bin/bash
# Trains on two nodes of a Slurm cluster, in a folder that all nodes share:
#
#     sbatch slurm.sh corpus.txt --steps 100000
#
# A job that runs out of time or is preempted saves, goes back to the queue and continues.

#SBATCH --job-name=minigpt
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1       # one process for each GPU, with --gpus-per-node=
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@60        # a signal to this script, 60 seconds before the end of the time
#SBATCH --requeue
#SBATCH --open-mode=append

export MINIGPT_CACHE="$PWD/minigpt-cache"

save_and_requeue() {
    scancel --signal=TERM "$SLURM_JOB_ID"   # to the processes of srun, which save and end
    wait "$training" || scontrol requeue "$SLURM_JOB_ID"   # unless it has just finished
}
trap save_and_requeue USR1
trap '' TERM   # at scancel and preemption: the processes get the signal, too, and save

srun --kill-on-bad-exit minigpt train "$@" --name "job-$SLURM_JOB_ID" --resume &
training=$!
wait "$training"
