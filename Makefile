# Everything a clone needs; each environment is made once and again only when pyproject.toml changes.
#   make demo    ask a voice assistant a spoken question on the CPU, and draw how its three stages worked
#   make test    the whole test suite, in as many processes as WORKERS says
#   make lint    ruff and mypy
#   make docs    the site in outputs/docs; a broken link is an error
#   make bench   speed beside llama.cpp, transformers, faster-whisper, hibari's package and qwen-tts, measured in one run

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
QWEN   := $(VENV)-qwen-tts

PROMPT   ?= What do plants need to grow?
SAMPLING ?= greedy
DEMO     ?= outputs/demo
WORKERS  ?= 2
TESTS    ?= # e.g. tests/graph; all by default
BENCH    ?= # e.g. voice --rounds 3; `make bench BENCH=--help` lists what can be measured

.PHONY: demo test lint docs bench clean

# The question is spoken by the voice that answers it.
demo: $(VENV)/.demo
	$(BIN)/multistage-inference deployment=hibari build_if_missing=true prompt="$(PROMPT)" out_audio=$(DEMO)/question.wav
	$(BIN)/multistage-inference deployment=voice_assistant build_if_missing=true audio=$(DEMO)/question.wav \
		out_audio=$(DEMO)/answer.wav out_timeline=$(DEMO)/answer.png dump_profile=true sampling=$(SAMPLING)

# A process takes whole files, so what a file builds for its tests is built once. Torch takes one thread in each: threads
# of two processes that wait busily for each other would take longer than the work itself.
test: export OMP_NUM_THREADS = 1
test: $(VENV)/.test
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadscope $(TESTS)

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/python docs/tools/settings.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet docs outputs/docs

bench: $(VENV)/.bench $(QWEN)/.made
	QWEN_TTS=$(QWEN)/bin/python $(BIN)/python -m tests.bench $(BENCH)

clean:
	rm -rf $(VENV) $(QWEN) build dist *.egg-info outputs

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: EXTRAS = cpu,hibari,picture
$(VENV)/.test: EXTRAS = cpu,test,tensorrt-rtx
$(VENV)/.dev: EXTRAS = cpu,test,dev
$(VENV)/.docs: EXTRAS = cpu,docs
$(VENV)/.bench: EXTRAS = cpu,bench

# llama.cpp is compiled for what this CPU says it has, one by one: -march=native would take AMX too, which many virtual
# machines name and then forbid. Other processors than x86 list none of these and take llama.cpp's own choice.
CPU := $(shell grep -m1 ^flags /proc/cpuinfo 2>/dev/null)
has = $(if $(filter $(1),$(CPU)),-DGGML_$(2)=ON)
GGML := $(call has,avx,AVX) $(call has,avx2,AVX2) $(call has,fma,FMA) $(call has,f16c,F16C) $(call has,avx512bw,AVX512) \
	$(call has,avx512vbmi,AVX512_VBMI) $(call has,avx512_vnni,AVX512_VNNI) $(call has,avx512_bf16,AVX512_BF16)
$(VENV)/.bench: export CMAKE_ARGS = $(if $(strip $(GGML)),-DGGML_NATIVE=OFF $(strip $(GGML)))
# One compiled before, which pip keeps, may be for another processor.
$(VENV)/.bench: export PIP_NO_CACHE_DIR = 1

$(VENV)/.demo $(VENV)/.test $(VENV)/.dev $(VENV)/.docs $(VENV)/.bench: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e ".[$(EXTRAS)]"
	@touch $@

# qwen-tts needs an older transformers than everything else here, and without --no-deps a user interface.
$(QWEN)/.made:
	$(PYTHON) -m venv $(QWEN)
	$(QWEN)/bin/pip install --quiet torch==2.13.0 transformers==4.57.3 accelerate==1.12.0 librosa soundfile einops onnxruntime
	$(QWEN)/bin/pip install --quiet --no-deps qwen-tts==0.1.1
	@touch $@
