"""placeholder"""


class FrozenFeatures: ...
