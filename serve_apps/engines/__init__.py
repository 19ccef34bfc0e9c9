"""SGLang engines: their processes, arguments, weights and the parts that make them run on a CPU."""
