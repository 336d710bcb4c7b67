"""Reading what is published: safetensors, GGUF, CTranslate2, ONNX; fetched by sum."""
