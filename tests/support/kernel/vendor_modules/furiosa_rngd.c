// SPDX-License-Identifier: GPL-2.0
/*
 * Stand-in for a driver that cannot be loaded beside a module of the kernel's own tree, `uio`: as long as that is there,
 * the device is busy. Nothing in modules.dep says so. FAIL_INIT makes the init function fail in any case.
 */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/uio_driver.h>
#include "stand_in.h"

static const struct file_operations furiosa_fops = {
	.owner = THIS_MODULE,
};

static struct miscdevice furiosa_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "npu0mgmt",
	.nodename = "rngd/npu0mgmt",
	.fops = &furiosa_fops,
};

static int __init furiosa_rngd_init(void)
{
	int error;

	if (symbol_get(uio_unregister_device)) {
		symbol_put(uio_unregister_device);
		return -EBUSY;
	}
	error = IS_ENABLED(FAIL_INIT) ? -EIO : misc_register(&furiosa_device);
	if (!error)
		STAND_IN("loaded");
	return error;
}
module_init(furiosa_rngd_init);

static void __exit furiosa_rngd_exit(void)
{
	misc_deregister(&furiosa_device);
	STAND_IN("unloaded");
}
module_exit(furiosa_rngd_exit);
