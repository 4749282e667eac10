# Devices of the QEMU that the lab builds: the machines virt, raspi3b and
# xlnx-zcu102, and what the lab's command lines add to them.
CONFIG_ARM_VIRT=y
CONFIG_RASPI=y
CONFIG_XLNX_ZYNQMP_ARM=y
# Cortex-M's interrupt controller: the Cortex-R5 of the zcu102 link against it.
CONFIG_ARM_V7M=y
# The GICv3 of virt under TCG. It isn't selected by the machine.
CONFIG_ARM_GICV3_TCG=y
# The command's output: pci-serial-2x.
CONFIG_SERIAL=y
CONFIG_SERIAL_PCI=y
CONFIG_SERIAL_PCI_MULTI=y
# Results and the guest's files: virtio-9p-pci. The others for --append and shells.
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_9P=y
CONFIG_VIRTIO_BLK=y
CONFIG_VIRTIO_RNG=y
CONFIG_VIRTIO_SERIAL=y
# Semihosting, with which bare-metal test programs end and print.
CONFIG_SEMIHOSTING=y
CONFIG_ARM_COMPATIBLE_SEMIHOSTING=y
CONFIG_PCI_DEVICES=n
CONFIG_TEST_DEVICES=n
