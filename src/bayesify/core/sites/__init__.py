"""Sites: ordinary layers made random. Each is the layer itself with its class swapped, so names, hooks, tying and types survive."""

from torch import nn

from bayesify.core.sites.base import Drawing, Site
from bayesify.core.sites.contractions import (
    BayesConv1d,
    BayesConv2d,
    BayesConv3d,
    BayesConvTranspose1d,
    BayesConvTranspose2d,
    BayesConvTranspose3d,
    BayesLinear,
)
from bayesify.core.sites.elementwise import (
    BayesBatchNorm1d,
    BayesBatchNorm2d,
    BayesBatchNorm3d,
    BayesEmbedding,
    BayesGroupNorm,
    BayesLayerNorm,
)

__all__ = ["SITES", "Drawing", "Site", "site_type"]

# Exact types only: a subclass may use its weight in its own way.
SITES: dict[type[nn.Module], type[Site]] = {
    site.original: site
    for site in (
        BayesLinear,
        BayesConv1d,
        BayesConv2d,
        BayesConv3d,
        BayesConvTranspose1d,
        BayesConvTranspose2d,
        BayesConvTranspose3d,
        BayesBatchNorm1d,
        BayesBatchNorm2d,
        BayesBatchNorm3d,
        BayesGroupNorm,
        BayesLayerNorm,
        BayesEmbedding,
    )
}


def site_type(layer: nn.Module) -> type[Site]:
    """What a layer, or the layer it is a subclass of, would be made; `Site` itself for types that are not supported."""
    return next((site for original, site in SITES.items() if isinstance(layer, original)), Site)
