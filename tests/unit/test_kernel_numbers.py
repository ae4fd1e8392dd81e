"""Numbers of the kernel's interfaces, as its own headers have them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from weft.host.net import marking, namespaces, qdisc, rtnetlink

HEADERS = (
    "stdio.h",
    "linux/types.h",
    "linux/bpf.h",
    "linux/if.h",
    "linux/if_bridge.h",
    "linux/if_ether.h",
    "linux/if_link.h",
    "linux/inet_diag.h",
    "linux/neighbour.h",
    "linux/netlink.h",
    "linux/pkt_cls.h",
    "linux/pkt_sched.h",
    "linux/rtnetlink.h",
    "linux/sched.h",
    "linux/sock_diag.h",
    "linux/tc_act/tc_mirred.h",
)
NUMBERS: dict[ModuleType, dict[str, str]] = {
    rtnetlink: {
        "NETLINK_ROUTE": "NETLINK_ROUTE",
        "REQUEST": "NLM_F_REQUEST",
        "ACKNOWLEDGE": "NLM_F_ACK",
        "REPLACE": "NLM_F_REPLACE",
        "EXCLUSIVE": "NLM_F_EXCL",
        "CREATE": "NLM_F_CREATE",
        "DUMP": "NLM_F_DUMP",
        "NEW_LINK": "RTM_NEWLINK",
        "DELETE_LINK": "RTM_DELLINK",
        "GET_LINK": "RTM_GETLINK",
        "GET_ROUTE": "RTM_GETROUTE",
        "GET_NEIGHBOUR": "RTM_GETNEIGH",
        "_ERROR": "NLMSG_ERROR",
        "_DONE": "NLMSG_DONE",
        "_CAPPED": "NLM_F_CAPPED",
        "_HAS_WORDS": "NLM_F_ACK_TLVS",
        "_WORDS": "NLMSGERR_ATTR_MSG",
        "_CAP_ACK": "NETLINK_CAP_ACK",
        "_EXT_ACK": "NETLINK_EXT_ACK",
        "_LINK_NAME": "IFLA_IFNAME",
        "_LINK_MTU": "IFLA_MTU",
        "_LINK_PORT": "IFLA_PROTINFO",
        "_LINK_STATE": "IFLA_OPERSTATE",
        "_LINK_INFO": "IFLA_LINKINFO",
        "_LINK_BELOW": "IFLA_LINK",
        "_LINK_MASTER": "IFLA_MASTER",
        "_LINK_ELSEWHERE": "IFLA_LINK_NETNSID",
        "_INFO_KIND": "IFLA_INFO_KIND",
        "_IS_UP": "IFF_UP",
        "_PORT_STATE": "IFLA_BRPORT_STATE",
        "_ROUTE_INTERFACE": "RTA_OIF",
        "_ROUTE_MULTIPATH": "RTA_MULTIPATH",
        "_UNICAST": "RTN_UNICAST",
        "_STATION": "NDA_LLADDR",
        "_OF_BRIDGE": "NDA_MASTER",
        "_LOCAL": "NUD_PERMANENT",
    },
    qdisc: {
        "NEW_QDISC": "RTM_NEWQDISC",
        "DELETE_QDISC": "RTM_DELQDISC",
        "GET_QDISC": "RTM_GETQDISC",
        "NEW_CLASS": "RTM_NEWTCLASS",
        "DELETE_CLASS": "RTM_DELTCLASS",
        "GET_CLASS": "RTM_GETTCLASS",
        "NEW_FILTER": "RTM_NEWTFILTER",
        "DELETE_FILTER": "RTM_DELTFILTER",
        "GET_FILTER": "RTM_GETTFILTER",
        "ROOT": "TC_H_ROOT",
        "INGRESS": "TC_H_INGRESS",
        "_KIND": "TCA_KIND",
        "_OPTIONS": "TCA_OPTIONS",
        "_STATISTICS": "TCA_STATS",
        "_CHAIN": "TCA_CHAIN",
        "_TBF_PARAMETERS": "TCA_TBF_PARMS",
        "_TBF_RATE64": "TCA_TBF_RATE64",
        "_TBF_BURST": "TCA_TBF_BURST",
        "_HTB_PARAMETERS": "TCA_HTB_PARMS",
        "_HTB_INIT": "TCA_HTB_INIT",
        "_HTB_RATE64": "TCA_HTB_RATE64",
        "_HTB_CEIL64": "TCA_HTB_CEIL64",
        "_U32_CLASS": "TCA_U32_CLASSID",
        "_U32_SELECTOR": "TCA_U32_SEL",
        "_U32_ACTIONS": "TCA_U32_ACT",
        "_ACTION_KIND": "TCA_ACT_KIND",
        "_ACTION_OPTIONS": "TCA_ACT_OPTIONS",
        "_MIRRED_PARAMETERS": "TCA_MIRRED_PARMS",
        "_STOLEN": "TC_ACT_STOLEN",
        "_REDIRECT": "TCA_EGRESS_REDIR",
        "_ETHERNET": "TC_LINKLAYER_ETHERNET",
        "_ANY_PROTOCOL": "ETH_P_ALL",
        "_TERMINAL": "TC_U32_TERMINAL",
    },
    marking: {
        "_PROG_LOAD": "BPF_PROG_LOAD",
        "_PROG_ATTACH": "BPF_PROG_ATTACH",
        "_SOCK_OPS": "BPF_PROG_TYPE_SOCK_OPS",
        "_AT_SOCK_OPS": "BPF_CGROUP_SOCK_OPS",
        "_CONNECTS": "BPF_SOCK_OPS_TCP_CONNECT_CB",
        "_CONNECTED": "BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB",
        "_ACCEPTED": "BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB",
        "_SET_SOCKET_OPTION": "BPF_FUNC_setsockopt",
        "NETLINK_SOCK_DIAG": "NETLINK_SOCK_DIAG",
        "_BY_FAMILY": "SOCK_DIAG_BY_FAMILY",
        "_BYTECODE": "INET_DIAG_REQ_BYTECODE",
        "_IN_GROUP": "INET_DIAG_BC_CGROUP_COND",
    },
    namespaces: {"CLONE_NEWNET": "CLONE_NEWNET", "CLONE_NEWUTS": "CLONE_NEWUTS"},
}


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What the headers say of every name above."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not all(Path("/usr/include", name).exists() for name in HEADERS):
        pytest.skip("needs a C compiler and the kernel's headers (linux-libc-dev)")
    names = sorted({name for numbers in NUMBERS.values() for name in numbers.values()})
    lines = [f"#include <{header}>" for header in HEADERS]
    prints = [f'printf("{name} %lu\\n", 0xffffffffUL & (unsigned long)({name}));' for name in names]
    program = tmp_path_factory.mktemp("kernel") / "numbers"
    source = "\n".join([*lines, "int main(void) {", *prints, "return 0; }"])
    subprocess.run(
        [compiler, "-x", "c", "-", "-o", str(program)],
        input=source,
        text=True,
        check=True,
        timeout=60,
        capture_output=True,
    )
    output = subprocess.run([program], capture_output=True, text=True, check=True, timeout=10)
    return {name: int(value) for name, value in map(str.split, output.stdout.splitlines())}


@pytest.mark.parametrize("module", NUMBERS, ids=lambda module: module.__name__)
def test_numbers_of_the_kernel_are_those_of_its_headers(
    module: ModuleType, kernel: dict[str, int]
) -> None:
    ours = {name: getattr(module, name) for name in NUMBERS[module]}
    assert ours == {name: kernel[theirs] for name, theirs in NUMBERS[module].items()}
