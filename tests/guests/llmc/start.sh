#!/bin/sh
# Usage: start.sh PROGRAM FOLDER NAME [OPTION]...
# Runs a rank of llm.c's trainer in FOLDER, which has its model and text (small.py). Each rank gets
# its number as llm.c expects it; the first one leaves NCCL's id in a folder.
program=$1 folder=$2 name=$3
shift 3
cd "$folder" && mkdir -p "$name.id" || exit
exec "$program" -o "$name" -i text.bin -j text.bin -b 2 -t 64 -s 0 -v 2 -m 1 \
    -pi fs -pf "$name.id" -pn "$WORLD_SIZE" -pr "$RANK" -pg "$WORLD_SIZE" "$@"
