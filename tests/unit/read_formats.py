"""Reads what write_formats wrote, with the libraries people use. Prints TAP; a library that is missing is a skipped case."""

import importlib
import json
import pathlib
import struct
import sys
import traceback

DIR = pathlib.Path(sys.argv[1])
NPY = {"scalar": (), "vector": (5,), "matrix": (2, 3), "empty": (2, 0, 3), "four": (2, 3, 4, 5)}


def expected(np, index, shape):
    """Element k of tensor `index`, as write_formats computes it."""
    n = int(np.prod(shape, dtype=np.int64))
    k = np.arange(n, dtype=np.int64)
    values = ((index * 7919 + k * 31) % 1000).astype(np.float32) / np.float32(10000)
    return values.reshape(shape)


def header(path):
    data = path.read_bytes()
    (n,) = struct.unpack("<Q", data[:8])
    assert (8 + n) % 4096 == 0
    return json.loads(data[8 : 8 + n])


def numpy_reads_npy(np):
    for index, (name, shape) in enumerate(NPY.items()):
        for mode in (None, "r") if name != "empty" else (None,):
            a = np.load(DIR / "npy" / f"{name}.npy", mmap_mode=mode)
            assert a.shape == shape and a.dtype == np.dtype("<f4"), (name, a.shape, a.dtype)
            assert (a == expected(np, index, shape)).all(), name


def safetensors_reads_the_file(np, st):
    tensors = st.load_file(DIR / "one.safetensors")
    assert list(header(DIR / "one.safetensors"))[0] == "__metadata__"
    assert len(tensors) == 2 + 2 * 12 + 2
    wte = tensors["transformer.wte.weight"]
    assert wte.shape == (257, 16)
    assert (wte == expected(np, 0, (257, 16))).all()
    last = tensors["transformer.ln_f.bias"]
    assert (last == expected(np, 27, (16,))).all()
    with importlib.import_module("safetensors").safe_open(
        DIR / "one.safetensors", framework="numpy"
    ) as f:
        assert f.metadata() == {"format": "pt", "step": "12"}, f.metadata()


def transformers_loads_the_model(np, transformers, name):
    torch = importlib.import_module("torch")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        DIR / name, output_loading_info=True
    )
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not info[key], (key, info[key])
    wte = model.transformer.wte.weight.detach().numpy()
    assert (wte == expected(np, 0, (257, 16))).all()
    assert model.lm_head.weight.data_ptr() == model.transformer.wte.weight.data_ptr()
    assert model.generation_config.eos_token_id == 256
    with torch.no_grad():
        out = model(torch.tensor([[72, 39, 256]]))
    assert out.logits.shape == (1, 3, 257)


def the_tokenizer_maps_bytes_both_ways(np, transformers):
    tokenizer = transformers.AutoTokenizer.from_pretrained(DIR / "hf")
    assert tokenizer.model_max_length == 32
    text = "Hello, wörld!  two spaces\tand\n a 'quote' \U0001f600 don't , .\r\n\x00\x7f end "
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text.encode()), (len(ids), len(text.encode()))
    assert tokenizer.decode(ids) == text, repr(tokenizer.decode(ids))
    every = "".join(map(chr, range(0x250)))
    assert tokenizer.decode(tokenizer(every)["input_ids"]) == every
    assert tokenizer.convert_tokens_to_ids("<|endoftext|>") == 256
    assert tokenizer.eos_token_id == 256 and tokenizer.bos_token_id == 256
    assert tokenizer("a<|endoftext|>")["input_ids"][-1] == 256
    assert tokenizer("!")["input_ids"] == [0] and tokenizer(" ")["input_ids"] == [220]
    assert len(tokenizer) == 257


CASES = [
    ("numpy reads npy", numpy_reads_npy, ["numpy"], []),
    ("safetensors reads the file", safetensors_reads_the_file, ["numpy", "safetensors.numpy"], []),
    ("transformers loads the model", transformers_loads_the_model, ["numpy", "transformers"], ["hf"]),
    ("transformers loads split weights", transformers_loads_the_model, ["numpy", "transformers"], ["hf-sharded"]),
    ("the tokenizer maps bytes both ways", the_tokenizer_maps_bytes_both_ways, ["numpy", "transformers"], []),
]

failed = 0
print(f"1..{len(CASES)}")
for number, (name, case, needs, more) in enumerate(CASES, 1):
    try:
        modules = [importlib.import_module(m) for m in needs]
        if "transformers" in needs:
            importlib.import_module("torch")
    except ImportError as missing:
        print(f"ok {number} - {name} # SKIP {missing}")
        continue
    try:
        case(*modules, *more)
        print(f"ok {number} - {name}")
    except Exception:
        failed = 1
        traceback.print_exc(file=sys.stdout)
        print(f"not ok {number} - {name}")
sys.exit(failed)
