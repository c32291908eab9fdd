#!/bin/bash
export NCCL_SOCKET_IFNAME=^lo,docker0
GLOO_SOCKET_IFNAME=$(ip -o route get "$MASTER_ADDR" | sed 's/.* dev \([^ ]*\).*/\1/')
export GLOO_SOCKET_IFNAME
