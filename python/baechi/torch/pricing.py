from dataclasses import dataclass
@dataclass(frozen=True)
class Work:
    op: str
    flops: int
    bytes_moved: int
    dtype: str
    num_kernels: int = 1
    is_view: bool = False
def flops_of(func, args, kwargs, out):
    from torch.utils.flop_counter import flop_registry
    f = flop_registry.get(func.overloadpacket)
    return int(f(*args, **kwargs, out_val=out)) if f else 0
