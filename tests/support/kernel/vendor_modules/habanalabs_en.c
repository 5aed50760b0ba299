// SPDX-License-Identifier: GPL-2.0
/* Stand-in for a module above the network's core, which it needs by a symbol: the kernel itself keeps that order. */
#include "stand_in.h"

extern int habanalabs_cn_stand_in(void);

static int __init habanalabs_en_init(void)
{
	STAND_IN("loaded");
	return habanalabs_cn_stand_in();
}
module_init(habanalabs_en_init);

static void __exit habanalabs_en_exit(void)
{
	STAND_IN("unloaded");
}
module_exit(habanalabs_en_exit);
