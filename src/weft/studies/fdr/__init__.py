"""The studies of the FDR paper, in its order. Entry point: `FDR`."""

from weft.studies.fdr.fdr_studies import FDR

__all__ = ["FDR"]
