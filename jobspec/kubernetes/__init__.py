"""What the four Kubernetes targets share: the pod, the rules of admission, who sets which variable.

Kubernetes versions for which the manifests are made and checked: podReplacementPolicy begins with the oldest,
the newest is the last one whose schemas the tests know.
"""

OLDEST = "1.29"
NEWEST = "1.37"
