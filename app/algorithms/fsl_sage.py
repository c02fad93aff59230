"""FSL-SAGE: clients' auxiliary heads stand for the server's gradient, to which they are fitted (arXiv:2505.23182)."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from espalier.app.algorithms.algorithm import Algorithm, Site
from espalier.app.algorithms.split_edges import LOCAL_LOSS_CLIENT, split_options, the_cut
from espalier.app.ground.reasons import unused
from espalier.app.settings.section import Section
from espalier.strategies.split import Fit, FslSage


class FslSageSettings(Section):
    """Of FSL-SAGE."""

    name = "fsl-sage"

    fit_every: Annotated[int, Field(ge=0, le=10**9)] = 10
    """With [FSL-SAGE](algorithms.md#fsl-sage): auxiliary heads are fitted after the first round, then every so many
    rounds; 0: never.
    """
    fit_steps: Annotated[int, Field(gt=0, le=10**6)] = 100
    """Steps of Adam in a fit, each on all examples that are kept of the client."""
    fit_rate: Annotated[float, Field(gt=0, le=10.0)] = 0.001
    """Adam's learning rate there."""
    fit_examples: Annotated[int, Field(gt=0, le=10**6)] = 1000
    """So many examples are kept of each client, the last whose activations came."""

    def without_use(self, given: Mapping[str, Any]) -> Iterable[tuple[Iterable[str], str]]:
        """Return what heads would be fitted with, where they are not."""
        fitting = ("fsl-sage.fit-steps", "fsl-sage.fit-rate", "fsl-sage.fit-examples")
        return unused(
            (not given["split.upload-every"], (*fitting, "fsl-sage.fit-every"), "split.upload-every = 0"),
            (not self.fit_every, fitting, "fsl-sage.fit-every = 0"),
        )


def server_that_fits_heads(site: Site) -> FslSage:
    """Return an edge with one server block that fits a head for each client."""
    own = site.own
    assert isinstance(own, FslSageSettings)
    assert site.auxiliary is not None
    return FslSage(
        site.new_model(),
        the_cut(site),
        head=site.auxiliary,
        upload_every=site.split.upload_every,
        fit=Fit(own.fit_every, own.fit_steps, own.fit_rate, own.fit_examples),
        **split_options(site),
    )


FSL_SAGE = Algorithm(
    name="fsl-sage",
    summary="CSE-FSL whose auxiliary heads the server fits to its own gradients, each client's its own.",
    make_edge=server_that_fits_heads,
    tiers="one or two",
    splits=True,
    shares_server=True,
    auxiliary="own",
    client=LOCAL_LOSS_CLIENT,
    section=FslSageSettings,
)
