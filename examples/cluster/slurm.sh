#!/bin/bash
# A distributed program on Slurm, all its tasks over all nodes of the job:
#
#   sbatch --nodes=4 examples/cluster/slurm.sh examples/distributed.py --sync
#
# PS and WORKERS say how many tasks there are. The job ends with the workers, or with the first failure.
#SBATCH --job-name=thalweg
#SBATCH --nodes=2
#SBATCH --time=01:00:00

set -euo pipefail
ps=${PS:-1} workers=${WORKERS:-3} first_port=${PORT:-22220}
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))

# One key for all tasks, in their environment alone.
THALWEG_CLUSTER_KEY=$(python -c "import thalweg as tf; print(tf.cluster.new_key())")
export THALWEG_CLUSTER_KEY

node() { echo "${nodes[$1 % ${#nodes[@]}]}"; }
addresses() { # of the tasks from $1 up to $2
  local number text=""
  for ((number = $1; number < $2; number++)); do
    text+=", \"$(node $number):$((first_port + number))\""
  done
  echo "[${text#, }]"
}
cluster="{\"ps\": $(addresses 0 $ps), \"worker\": $(addresses $ps $((ps + workers)))}"

start() { # task $1, which is number $3 of job $2, with the program's arguments
  local number=$1 task="{\"type\": \"$2\", \"index\": $3}"
  shift 3
  TF_CONFIG="{\"cluster\": $cluster, \"task\": $task}" \
    srun --exact --nodes=1 --ntasks=1 --nodelist="$(node $number)" python "$@" &
}

trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
for ((i = 0; i < ps; i++)); do start $i ps $i "$@"; done
for ((i = 0; i < workers; i++)); do start $((ps + i)) worker $i "$@"; done
for ((i = 0; i < workers; i++)); do wait -n; done
