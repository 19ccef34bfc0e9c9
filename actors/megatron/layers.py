"""`block_spec`: the layers of a model, each as its family builds it."""

from megatron.core.transformer import transformer_block
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from actors.megatron.cpu import has_transformer_engine
from actors.megatron.families.architecture import Architecture
from actors.megatron.families.registry import family_of


def layer_spec(architecture: Architecture, layer: int) -> ModuleSpec:
    """Return the spec of the layer with this number, from 0 on; the one after the last is a prediction layer's."""
    return family_of(architecture).layer_spec(architecture, layer, transformer_engine=has_transformer_engine())


def block_spec(
    architecture: Architecture, config: TransformerConfig, virtual_stage: int | None
) -> TransformerBlockSubmodules:
    """Return the specs of the layers of this rank, or of its virtual stage, and the norm after the last layer."""
    first = get_transformer_layer_offset(config, virtual_stage)
    layers = range(first, first + get_num_layers_to_build(config, virtual_stage))
    specs = [layer_spec(architecture, layer) for layer in layers]
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=transformer_block.LayerNormImpl)
