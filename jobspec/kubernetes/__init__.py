"""Shared parts of the four Kubernetes targets: the pod, the admission rules, and who sets which variable.

Manifests are made and checked for the Kubernetes versions from OLDEST to NEWEST.  podReplacementPolicy begins with
OLDEST, and NEWEST is the last version whose schemas the tests know.
"""

OLDEST = "1.29"
NEWEST = "1.37"
