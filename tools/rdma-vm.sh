#!/usr/bin/env bash
# Runs a command where the kernel has RDMA: in a virtual machine with soft RoCE, rxe0 on 10.9.0.1.
#
#   rdma-vm.sh COMMAND [ARGUMENT...]      in this directory, as root; its exit status is ours
#
# The machine is emulated (no KVM needed): a distribution kernel, an initramfs of a few modules, and
# this machine's own files, read-only, as its root; what is written inside is lost, except in /out,
# which is build/rdma-vm/out. /tmp is empty inside: commands there are not found. Its clock says
# nothing about speed. WEFT_VM_SECONDS (1500) bounds the run.
#
# What a machine lacks is skipped by name, or fails when WEFT_REQUIRE (comma-separated) has rdma.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/build/rdma-vm
out=$cache/out
modules=(virtio_pci 9p 9pnet_virtio overlay rdma_rxe ib_uverbs rdma_ucm veth dummy crc32_generic
  crc32-pclmul af_packet)

(($# > 0)) || { echo "usage: rdma-vm.sh COMMAND [ARGUMENT...]" >&2 && exit 2; }

without() {
  if [[ ,${WEFT_REQUIRE:-}, == *,rdma,* ]]; then
    echo "FAILED  rdma: $1 (WEFT_REQUIRE asks for it)" >&2
    exit 1
  fi
  echo "skip    rdma: $1"
  exit 0
}

check_machine() {
  local command
  [[ $(uname -m) == x86_64 ]] || without "the virtual machine is for x86_64, this is $(uname -m)"
  [[ $root != /tmp/* ]] || without "$root is under /tmp, which is empty in the virtual machine"
  for command in qemu-system-x86_64 busybox modprobe depmod xz rdma apt-get dpkg; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null ||
      without "$command is not installed; as root: tools/system-packages.sh rdma"
  done
}

# The general kernel: the cloud one has neither rdma_rxe nor 9p.
kernel_package() {
  apt-cache depends linux-image-amd64 2>/dev/null |
    awk '/Depends: linux-image/ {print $2; exit}'
}

download() { (cd "$cache" && apt-get -qq -o APT::Sandbox::User=root download "$1"); }

fetch_kernel() {
  local package
  [[ -s $cache/vmlinux ]] && return
  package=$(kernel_package)
  [[ -n $package ]] || without "apt knows no linux-image-amd64; apt-get update"
  rm -rf "$cache/kernel" "$cache"/linux-image-*.deb
  download "$package" || { apt-get -qq update && download "$package"; } ||
    without "$package cannot be downloaded"
  dpkg -x "$cache/$package"_*.deb "$cache/kernel"
  rm "$cache/$package"_*.deb
  python3 "$root/tools/vmlinux.py" "$cache"/kernel/boot/vmlinuz-* "$cache/vmlinux.new"
  depmod -b "$cache/kernel" "$(ls "$cache/kernel/lib/modules")"
  mv "$cache/vmlinux.new" "$cache/vmlinux"
}

# $1: module; files it needs, itself last
files_of_module() {
  modprobe -d "$cache/kernel" -S "$version" --show-depends "$1" 2>/dev/null |
    awk '$1 == "insmod" {print $2}'
}

make_initramfs() {
  local version tree=$cache/initramfs module file target
  version=$(ls "$cache/kernel/lib/modules")
  rm -rf "$tree"
  mkdir -p "$tree"/{bin,sbin,dev,proc,sys,new,ro,rw,lib/modules/"$version"}
  cp "$(command -v busybox)" "$tree/bin/busybox"
  for file in sh mount mkdir modprobe chroot cp; do ln -s busybox "$tree/bin/$file"; done
  # The kernel loads modules by itself (crc32) through this path.
  ln -s ../bin/busybox "$tree/sbin/modprobe"
  for module in "${modules[@]}"; do files_of_module "$module" || true; done | sort -u |
    while read -r file; do
      target=$tree/lib/modules/${file#*/lib/modules/}
      mkdir -p "$(dirname "$target")"
      cp "$file" "$target"
      [[ $target != *.xz ]] || xz -d "$target"
    done
  cp "$cache/kernel/lib/modules/$version"/modules.{builtin,order,builtin.modinfo} \
    "$tree/lib/modules/$version/"
  depmod -b "$tree" "$version"
  install -m 755 "$root/tools/rdma-vm-init.sh" "$tree/init"
  (cd "$tree" && find . | busybox cpio -o -H newc 2>/dev/null) >"$cache/initramfs.cpio"
}

# The command with its directory and the few variables it may see, as the guest's shell reads it.
write_command() {
  {
    printf 'cd %q || exit 97\n' "$PWD"
    printf 'export NO_COLOR=1 TERM=dumb WEFT_RDMA_VM=1 WEFT_RDMA_OUT=/out WEFT_REQUIRE=%q\n' "${WEFT_REQUIRE:-}"
    printf 'exec'
    printf ' %q' "$@"
    printf '\n'
  } >"$out/command.sh"
}

boot() {
  local share=security_model=passthrough,multidevs=remap
  timeout --foreground "${WEFT_VM_SECONDS:-1500}" qemu-system-x86_64 \
    -M q35 -accel tcg,thread=multi -cpu max -smp 1 -m 2048 \
    -nodefaults -no-user-config -no-reboot -display none -serial stdio \
    -kernel "$cache/vmlinux" -initrd "$cache/initramfs.cpio" \
    -fsdev "local,id=root,path=/,readonly=on,$share" -device virtio-9p-pci,fsdev=root,mount_tag=root \
    -fsdev "local,id=out,path=$out,security_model=none" -device virtio-9p-pci,fsdev=out,mount_tag=out \
    -append "console=ttyS0 panic=-1 quiet mitigations=off nokaslr tsc=reliable no_timer_check \
      random.trust_cpu=on audit=0 apparmor=0" </dev/null 9>&- | sed -u 's/\r$//' | tee "$cache/console.log"
}

check_machine
export PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$out"
exec 9>"$cache/lock"
flock --nonblock 9 || { echo "FAILED  rdma: another run uses $cache" >&2 && exit 1; }
fetch_kernel
make_initramfs
find "$out" -mindepth 1 -delete
write_command "$@"
SECONDS=0
boot || echo "rdma-vm: the virtual machine ended with status $?" >&2
[[ -s $out/status ]] || {
  echo "FAILED  rdma: the virtual machine gave no result after $SECONDS s; $cache/console.log" >&2
  exit 98
}
exit "$(<"$out/status")"
