// SPDX-License-Identifier: GPL-2.0
/*
 * Stand-in for the core of the network. It meets habanalabs on a bus: it looks for it by name when it is loaded, takes
 * no reference, and fails where that is not there. FAIL_INIT makes it fail in any case.
 */
#include "stand_in.h"

extern int habanalabs_stand_in(void);

int habanalabs_cn_stand_in(void)
{
	return 0;
}
EXPORT_SYMBOL_GPL(habanalabs_cn_stand_in);

static int __init habanalabs_cn_init(void)
{
	if (IS_ENABLED(FAIL_INIT))
		return -EIO;
	if (!symbol_get(habanalabs_stand_in))
		return -ENODEV;
	symbol_put(habanalabs_stand_in);
	STAND_IN("loaded");
	return 0;
}
module_init(habanalabs_cn_init);

static void __exit habanalabs_cn_exit(void)
{
	STAND_IN("unloaded");
}
module_exit(habanalabs_cn_exit);
