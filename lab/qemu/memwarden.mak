# Devices of the QEMU that the lab builds: the machines virt, raspi3b and
# xlnx-zcu102, and what the lab's command lines add to them.
CONFIG_ARM_VIRT=y
CONFIG_RASPI=y
CONFIG_XLNX_ZYNQMP_ARM=y
# The last two machines have these devices, and do not select them.
CONFIG_OR_IRQ=y
CONFIG_UNIMP=y
CONFIG_USB_DWC3=y
# target/arm does not link without the interrupt controller of Cortex-M.
CONFIG_ARM_V7M=y
# virt selects the GICv2 only.
CONFIG_ARM_GICV3_TCG=y
# The command's output: pci-serial-2x.
CONFIG_SERIAL=y
CONFIG_SERIAL_PCI=y
CONFIG_SERIAL_PCI_MULTI=y
# Results: virtio-9p-pci.
CONFIG_VIRTIO_PCI=y
CONFIG_VIRTIO_9P=y
# For guests that are booted by hand.
CONFIG_VIRTIO_BLK=y
CONFIG_VIRTIO_RNG=y
CONFIG_VIRTIO_SERIAL=y
# Bare-metal tests print and end by semihosting.
CONFIG_SEMIHOSTING=y
CONFIG_ARM_COMPATIBLE_SEMIHOSTING=y
CONFIG_PCI_DEVICES=n
CONFIG_TEST_DEVICES=n
