#!/bin/sh
# First process of tools/rdma-vm.sh's machine (busybox): mounts, makes rxe0, runs /out/command.sh,
# leaves its exit status in /out/status, switches off.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
for module in virtio_pci 9pnet_virtio 9p overlay; do modprobe $module; done

share=trans=virtio,version=9p2000.L,msize=524288
mount -t 9p -o $share,cache=loose,ro root /ro
mount -t tmpfs none /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/ro,upperdir=/rw/upper,workdir=/rw/work none /new
mkdir -p /new/lib/modules /new/out
cp -a /lib/modules/. /new/lib/modules/
mount -t devtmpfs none /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts none /new/dev/pts
mount -t proc none /new/proc
mount -t sysfs none /new/sys
for directory in dev/shm tmp run; do mount -t tmpfs none /new/$directory; done
mount -t 9p -o $share out /new/out

chroot /new /bin/bash -c '
  export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
  ip link set lo up
  for module in rdma_rxe ib_uverbs rdma_ucm af_packet; do modprobe $module; done
  ip link add dm0 type dummy
  ip address add 10.9.0.1/24 dev dm0
  ip link set dm0 up
  rdma link add rxe0 type rxe netdev dm0 || exit 96
  bash /out/command.sh'
echo $? >/new/out/status
busybox sync
busybox poweroff -f
