// SPDX-License-Identifier: GPL-2.0-only
/*
 * A dmaengine provider in software: parameters, the device, loading and unloading.
 *
 * dmaengine's providers must be bound to a driver, so there is a platform device without
 * hardware. Its DMA addresses are those of the kernel's direct mapping; loading is refused if
 * an IOMMU or other DMA operations would translate them.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt
#include <linux/cpumask.h>
#include <linux/dma-map-ops.h>
#include <linux/dma-mapping.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/overflow.h>
#include <linux/platform_device.h>
#include <linux/rcupdate.h>

#include "../include/memwarden/version.h"
#include "compat.h"
#include "faults.h"
#include "swdma.h"

#define CHANNELS_MAX 64
/* At 4096 a channel's descriptors take some 800 KiB. */
#define DESCRIPTORS_MAX 4096

static unsigned int channels = 4;
module_param(channels, uint, 0444);
MODULE_PARM_DESC(channels, "how many channels, each a thread (default 4, 1 to 64)");

static unsigned int descriptors = 64;
module_param(descriptors, uint, 0444);
MODULE_PARM_DESC(descriptors, "how many descriptors a channel has (default 64, 1 to 4096)");

static unsigned int copy_align;
module_param(copy_align, uint, 0444);
MODULE_PARM_DESC(copy_align, "log2 of the alignment that addresses and lengths must have (default 0, to 8)");

static unsigned int max_length = UINT_MAX;
module_param(max_length, uint, 0444);
MODULE_PARM_DESC(max_length, "the longest copy of a descriptor, in bytes (default 4294967295)");

static char *cpus = "";
module_param(cpus, charp, 0444);
MODULE_PARM_DESC(cpus, "CPUs to pin the threads to in turn, such as 0,2-3 (default: not pinned)");

static char *driver_name = "swdma";
module_param_named(driver, driver_name, charp, 0444);
MODULE_PARM_DESC(driver, "the driver's name, to play another provider (default swdma)");

struct swdma_faults swdma_faults;
EXPORT_SYMBOL_GPL(swdma_faults);

module_param_named(fail_every, swdma_faults.fail_every, uint, 0644);
MODULE_PARM_DESC(fail_every, "every n-th descriptor of a channel fails half-way (default 0: none)");

module_param_named(hang, swdma_faults.hang, uint, 0644);
MODULE_PARM_DESC(hang, "every n-th descriptor of a channel never ends (default 0: none)");

module_param_named(delay_ns, swdma_faults.delay_ns, uint, 0644);
MODULE_PARM_DESC(delay_ns, "wait before a descriptor completes (default 0)");

module_param_named(fail_silent, swdma_faults.fail_silent, uint, 0644);
MODULE_PARM_DESC(fail_silent, "every n-th descriptor of a channel fails half-way, and is said to have succeeded (default 0: none)");

module_param_named(runaway, swdma_faults.runaway, uint, 0644);
MODULE_PARM_DESC(runaway, "every n-th descriptor of a channel hangs half-way, and goes on 100 ms after it is terminated (default 0: none)");

module_param_named(late, swdma_faults.late, uint, 0644);
MODULE_PARM_DESC(late, "every n-th descriptor of a channel hangs half-way, and is called back as done 100 ms after it is terminated (default 0: none)");

module_param_named(submit_fails, swdma_faults.submit_fails, uint, 0644);
MODULE_PARM_DESC(submit_fails, "every n-th submission to a channel is called back as aborted, and fails (default 0: none)");

module_param_named(twice, swdma_faults.twice, uint, 0644);
MODULE_PARM_DESC(twice, "every n-th descriptor of a channel is called back twice (default 0: none)");

/**
 * struct swdma - the device
 * @device: the dmaengine device
 * @count: number of channels
 * @channel: the channels
 */
struct swdma {
	struct dma_device device;
	unsigned int count;
	struct swdma_channel channel[];
};

static struct platform_device *platform_device;
static cpumask_var_t allowed;

/* Call after the device is unregistered, or before it is registered. */
static void stop_channels(void *data)
{
	struct swdma *swdma = data;
	unsigned int i;

	/* dmaengine's list of devices is read under RCU. */
	synchronize_rcu();
	for (i = 0; i < swdma->count; i++) {
		if (swdma->channel[i].thread)
			kthread_stop(swdma->channel[i].thread);
		tasklet_kill(&swdma->channel[i].tasklet);
	}
}

static int start_channels(struct swdma *swdma)
{
	unsigned int i, cpu = cpumask_first(allowed);
	struct task_struct *thread;

	for (i = 0; i < swdma->count; i++) {
		thread = kthread_create(swdma_channel_thread, &swdma->channel[i], "swdma/%u", i);
		if (IS_ERR(thread))
			return PTR_ERR(thread);
		if (cpu < nr_cpu_ids) {
			kthread_bind(thread, cpu);
			cpu = cpumask_next(cpu, allowed);
			if (cpu >= nr_cpu_ids)
				cpu = cpumask_first(allowed);
		}
		swdma->channel[i].thread = thread;
		wake_up_process(thread);
	}
	return 0;
}

static int swdma_probe(struct platform_device *pdev)
{
	struct device *dev = &pdev->dev;
	struct swdma *swdma;
	unsigned int i;
	int err;

	swdma = devm_kzalloc(dev, struct_size(swdma, channel, channels), GFP_KERNEL);
	if (!swdma)
		return -ENOMEM;
	swdma_set_coherent(dev);
	err = dma_set_mask_and_coherent(dev, DMA_BIT_MASK(64));
	if (err)
		return dev_err_probe(dev, err, "no 64-bit DMA addresses\n");
	if (get_dma_ops(dev) || device_iommu_mapped(dev))
		return dev_err_probe(dev, -ENODEV, "DMA addresses are not physical ones\n");
	/* Clients read it to split their copies. */
	dma_set_max_seg_size(dev, max_length);

	swdma->device.dev = dev;
	swdma->device.copy_align = copy_align;
	swdma_device_init(&swdma->device);
	swdma->count = channels;
	for (i = 0; i < channels; i++)
		swdma_channel_init(&swdma->channel[i], &swdma->device, descriptors);
	err = devm_add_action_or_reset(dev, stop_channels, swdma);
	if (err)
		return err;
	err = start_channels(swdma);
	if (err)
		return dev_err_probe(dev, err, "a channel's thread did not start\n");
	err = dmaenginem_async_device_register(&swdma->device);
	if (err)
		return dev_err_probe(dev, err, "dmaengine did not take the channels\n");
	dev_info(dev, "%u channels with %u descriptors each\n", channels, descriptors);
	return 0;
}

/* Named by the parameter driver=. */
static struct platform_driver driver;

static int refuse_parameters(void)
{
	if (!channels || channels > CHANNELS_MAX)
		pr_err("channels=%u: give 1 to %d\n", channels, CHANNELS_MAX);
	else if (!descriptors || descriptors > DESCRIPTORS_MAX)
		pr_err("descriptors=%u: give 1 to %d\n", descriptors, DESCRIPTORS_MAX);
	else if (copy_align > DMAENGINE_ALIGN_256_BYTES)
		pr_err("copy_align=%u: give 0 to %d\n", copy_align, DMAENGINE_ALIGN_256_BYTES);
	else if (max_length < BIT(copy_align))
		pr_err("max_length=%u: give %lu or more\n", max_length, BIT(copy_align));
	else if (!*driver_name)
		pr_err("driver=%s: give a name\n", driver_name);
	else if (cpulist_parse(cpus, allowed) || !cpumask_subset(allowed, cpu_online_mask))
		pr_err("cpus=%s: give a list of CPUs that are online\n", cpus);
	else
		return 0;
	return -EINVAL;
}

static int __init swdma_init(void)
{
	int err;

	if (!zalloc_cpumask_var(&allowed, GFP_KERNEL))
		return -ENOMEM;
	err = refuse_parameters();
	if (err)
		goto free_cpumask;
	driver.driver.name = driver_name;
	/* Not bindable by hand: a client's channel pins the module, not the binding. */
	platform_device = platform_create_bundle(&driver, swdma_probe, NULL, 0, NULL, 0);
	err = PTR_ERR_OR_ZERO(platform_device);

free_cpumask:
	free_cpumask_var(allowed);
	return err;
}

static void __exit swdma_exit(void)
{
	platform_device_unregister(platform_device);
	platform_driver_unregister(&driver);
}

module_init(swdma_init);
module_exit(swdma_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("A dmaengine provider in software");
MODULE_AUTHOR("The memwarden authors");
MODULE_VERSION(MEMWARDEN_VERSION);
