#!/usr/bin/env bash
# Measures all that is to be known of this machine's GPUs, and leaves it in one folder: what `testudo bench
# gpu` (with headers by the processor and by the GPU, too), `bench scheduler` (figures 9 to 14 of paper 002,
# placement over load, latencies under half load), `bench --live`, `bench vpe --experiment scaling` (the engine
# cores beside workers, over their number, with suites from cheap to dear), `lab placements` and `lab papers`
# print as JSON, each in a file, with what the machine is. NAME is one word of the GPU's. One that fails leaves
# its words in FILE.err, and the others are run.
#
# usage: bench-gpu.sh PROGRAM FOLDER [--quick] [--gpu NAME]
set -uo pipefail
export LC_ALL=C
usage='usage: bench-gpu.sh PROGRAM FOLDER [--quick] [--gpu NAME]'
program=$(realpath "${1:?$usage}")
folder=${2:?$usage}
shift 2
quick=() short=() gpu=() chunks=8 repeat=5
while (($#)); do
    case $1 in
        --quick) quick=(--quick) short=(--milliseconds 20 --repetitions 1) chunks=2 repeat=1 ;;
        --gpu) gpu=(--gpu "${2:?$usage}") && shift ;;
        *) echo "$usage" >&2 && exit 2 ;;
    esac
    shift
done
mkdir -p "$folder" || exit
failed=()

# measure FILE WORD...: what the program prints for these words.
measure() {
    local file=$folder/$1
    shift
    echo "testudo $*" >&2
    if "$program" "$@" --json > "$file.part" 2> "$file.err"; then
        mv "$file.part" "$file" && rm -f "$file.err"
    else
        failed+=("$(basename "$file"): $(tail -n 1 "$file.err")")
        rm -f "$file.part"
    fi
}

{
    date --utc +%FT%TZ
    "$program" --version
    uname -srm
    lscpu | grep -E '^(Model name|CPU\(s\)|Thread|Core|L2|L3|NUMA node)'
    nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.max,pcie.link.width.max,clocks.max.sm --format=csv
    clinfo -l
} > "$folder/machine.txt" 2> /dev/null

# The best engine of the processor that works here, the one that does all, and numbers of workers up to that of
# processors.
for processor in vaes ipsec-mb portable; do
    "$program" bench --engines "$processor" --suites aes128gcm16 --sizes 64 --milliseconds 1 --repetitions 1 --json \
        > /dev/null 2>&1 && break
done
others=$processor
[[ $processor == portable ]] || others+=,portable
workers=1,2
for ((count = 4; count <= $(nproc) && count <= 64; count *= 2)); do workers+=,$count; done

measure gpu.json bench gpu "${quick[@]}" "${gpu[@]}"
measure gpu-headers.json bench gpu --headers cpu,gpu --directions outbound --parts gateways,latency "${quick[@]}" "${gpu[@]}"
# Several are one engine, too.
devices=$(nvidia-smi -L 2> /dev/null | wc -l)
((devices > 0)) || devices=$(clinfo 2> /dev/null | grep -c 'Device Type.*GPU')
if ((devices > 1)); then
    measure gpus.json bench gpu --gpus all --parts gateways,latency,processor "${quick[@]}" "${gpu[@]}"
    measure scheduler-gpus.json bench scheduler --experiment algorithms --gpus all --chunks "$chunks" "${gpu[@]}"
fi
for experiment in ideas chunks ranges algorithms latency threading tuning; do
    measure "scheduler-$experiment.json" bench scheduler --experiment "$experiment" --chunks "$chunks" "${gpu[@]}"
done
measure scheduler-placement.json bench scheduler --experiment placement --sizes 64,1420,random,imix \
    --chunks "$chunks" "${gpu[@]}"
measure scheduler-bound.json bench scheduler --experiment bound --sizes 64,1420,imix --chunks "$chunks" "${gpu[@]}"
measure live.json bench --live --engines "gpu,$others" --suites aes128gcm16,aes128-sha1,3des-sha1,mixed \
    --sizes 64,1420,imix "${short[@]}" "${gpu[@]}"
# The usual suite is cheaper than handing over, so that the engine stays alone; the others are not.
for suite in aes128gcm16 aes128-sha1 3des-sha1; do
    measure "cores-$suite.json" bench vpe --experiment scaling --cores --suite "$suite" --workers "$workers" --repeat "$repeat"
done
measure placements.json lab placements --latency --suites aes128-sha1,3des-sha1 "${quick[@]}"
measure placements-gpu.json lab placements --latency --offload-engine gpu --suites aes128-sha1,3des-sha1 "${quick[@]}" "${gpu[@]}"
measure papers.json lab papers --only 002 --out "$folder/papers" "${quick[@]}" "${gpu[@]}"

echo "in $folder: $(ls "$folder" | tr '\n' ' ')"
((${#failed[@]} == 0)) || { printf 'not measured: %s\n' "${failed[@]}" >&2; exit 1; }
