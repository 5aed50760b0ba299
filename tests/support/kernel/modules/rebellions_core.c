// SPDX-License-Identifier: GPL-2.0
/* Stand-in for a driver's base module: it exports what `rebellions` needs, and does nothing else. */
#include <linux/module.h>

static bool trace;
module_param(trace, bool, 0444);
MODULE_PARM_DESC(trace, "nothing depends on it");

const char *rebellions_core_name(void)
{
	return "rbln0";
}
EXPORT_SYMBOL_GPL(rebellions_core_name);

MODULE_DESCRIPTION("Stand-in accelerator driver, base module");
MODULE_VERSION(DRIVER_VERSION);
MODULE_LICENSE("GPL");
