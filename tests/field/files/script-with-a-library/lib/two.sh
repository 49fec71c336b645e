start() {
  docker run -d --name brain --network host --gpus all "$IMAGE" "${ARGS[@]}" --nnodes 2 --node-rank "$1" --master-addr $HEAD "${@:2}"
}
two_up() {
  ssh 10.0.0.2 "docker run -d --network host $IMAGE ${ARGS[*]} --nnodes 2 --node-rank 1 --master-addr $HEAD --headless"
  start 0 --port 8888
}
