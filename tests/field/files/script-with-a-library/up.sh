#!/bin/bash
set -e
DIR="$(cd "$(dirname "$0")" && pwd)"
source "$DIR/config.sh"
. ./lib/two.sh
ARGS=(--model "$MODEL" --tensor-parallel-size 2)
two_up
