/* SPDX-License-Identifier: GPL-2.0 */
/* What all stand-in modules of this folder do: they report in the kernel log that they come and go. */
#include <linux/module.h>

#define STAND_IN(verb) pr_info("stand-in: " KBUILD_MODNAME " " DRIVER_VERSION " " verb "\n")

MODULE_DESCRIPTION("Stand-in module of an accelerator driver");
MODULE_VERSION(DRIVER_VERSION);
MODULE_LICENSE("GPL");
