// SPDX-License-Identifier: GPL-2.0
/* Stand-in for the module that has the device. Nothing in modules.dep says that habanalabs_cn needs it. */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include "stand_in.h"

/* A parameter of the real one. */
static int timeout_locked = 30;
module_param(timeout_locked, int, 0444);
MODULE_PARM_DESC(timeout_locked, "nothing depends on it");

static const struct file_operations habanalabs_fops = {
	.owner = THIS_MODULE,
};

static struct miscdevice habanalabs_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "accel0",
	.nodename = "accel/accel0",
	.fops = &habanalabs_fops,
};

int habanalabs_stand_in(void)
{
	return 0;
}
EXPORT_SYMBOL_GPL(habanalabs_stand_in);

static int __init habanalabs_init(void)
{
	int error = misc_register(&habanalabs_device);

	if (!error)
		STAND_IN("loaded");
	return error;
}
module_init(habanalabs_init);

static void __exit habanalabs_exit(void)
{
	misc_deregister(&habanalabs_device);
	STAND_IN("unloaded");
}
module_exit(habanalabs_exit);
