"""The beginning of a program that is two ranks: they fork from one process, which imports once.

A program ends as programs do, its threads and all that torch has at the end included: ranks of a
pool (`ranks.py`) are killed. Its first argument is the path of a file that is not there yet.
"""

FORKED = """
import gc, os, signal, sys, torch, torch.distributed as dist, gradwire
gradwire.attach, gradwire.Handle
gc.freeze()  # what is imported stays, and is no garbage to look for in each
ranks = []
for rank in range(2):
    ranks.append(os.fork())
    if not ranks[-1]:
        break
else:
    sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) != 0 for rank in ranks))
torch.set_num_threads(1)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
dist.init_process_group(
    "gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2
)
"""
