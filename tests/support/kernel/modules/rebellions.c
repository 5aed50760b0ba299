// SPDX-License-Identifier: GPL-2.0
/*
 * Stand-in accelerator driver: a misc device that can be opened and mapped, so that a process can hold the module.
 * FAIL_INIT makes the init function fail with -EIO; NEED_ABSENT makes the module need a symbol that nobody exports;
 * NEED_FIRMWARE makes the init function ask for a file, and name another that it does not ask for; NO_EXIT leaves out
 * the exit function, so that the module never leaves its kernel. It also is the driver of QEMU's `edu` devices, and does
 * nothing with them (docs/specs/edu of QEMU has their ids).
 */
#include <linux/delay.h>
#include <linux/firmware.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/vmalloc.h>
#include <linux/wait.h>

extern const char *rebellions_core_name(void);
#ifdef NEED_ABSENT
extern int rebellions_absent_symbol(void);
#endif

static bool fail_init = IS_ENABLED(FAIL_INIT);
module_param(fail_init, bool, 0444);
MODULE_PARM_DESC(fail_init, "make the init function fail with -EIO");

/* An init function that takes long, as one does that waits for its device. */
static int init_seconds;
module_param(init_seconds, int, 0444);
MODULE_PARM_DESC(init_seconds, "seconds that the init function takes");

/* What an administrator sets, in modprobe.d or by hand. */
static int queue_depth = 64;
module_param(queue_depth, int, 0444);
MODULE_PARM_DESC(queue_depth, "nothing depends on it");

/* An exit function that hangs, where no signal reaches it, until somebody writes 0. */
static bool hang_exit;
module_param(hang_exit, bool, 0644);
MODULE_PARM_DESC(hang_exit, "let the exit function hang as long as this is set");

static void *device_memory;

static int rebellions_mmap(struct file *file, struct vm_area_struct *vma)
{
	return remap_vmalloc_range(vma, device_memory, 0);
}

/*
 * A device that hangs: a reader sleeps where no signal wakes it, SIGKILL neither, until somebody writes.
 */
static DECLARE_WAIT_QUEUE_HEAD(hung_readers);
static bool has_recovered;

static ssize_t rebellions_read(struct file *file, char __user *buffer, size_t size, loff_t *offset)
{
	wait_event(hung_readers, READ_ONCE(has_recovered));
	return 0;
}

static ssize_t rebellions_write(struct file *file, const char __user *buffer, size_t size, loff_t *offset)
{
	WRITE_ONCE(has_recovered, true);
	wake_up_all(&hung_readers);
	return size;
}

/* The owner makes every open file, and every mapping of one, take a module reference. */
static const struct file_operations rebellions_fops = {
	.owner = THIS_MODULE,
	.mmap = rebellions_mmap,
	.read = rebellions_read,
	.write = rebellions_write,
};

static struct miscdevice rebellions_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.fops = &rebellions_fops,
	.mode = 0666,
};

#ifdef NEED_FIRMWARE
#define FIRMWARE "rebellions/rbln.bin"
MODULE_FIRMWARE(FIRMWARE);
MODULE_FIRMWARE("rebellions/of-a-card-that-is-not-here.bin");

static int load_firmware(void)
{
	const struct firmware *found;
	int error = request_firmware_direct(&found, FIRMWARE, rebellions_device.this_device);

	if (!error)
		release_firmware(found);
	return error;
}
#else
static int load_firmware(void)
{
	return 0;
}
#endif

/*
 * A device that has gone bad: the flag is lost with the module, so a reload clears it, unless the device itself is
 * broken. A broken one says so in a register that nothing else uses, which keeps its value until the machine is reset.
 */
static bool sick;
module_param(sick, bool, 0644);
MODULE_PARM_DESC(sick, "the device has gone bad");

#define BROKEN 0xbd

static int rebellions_probe(struct pci_dev *device, const struct pci_device_id *id)
{
	u8 state;

	if (!pci_read_config_byte(device, PCI_INTERRUPT_LINE, &state) && state == BROKEN)
		sick = true;
	return pci_enable_device(device);
}

static void rebellions_remove(struct pci_dev *device)
{
	pci_disable_device(device);
}

static const struct pci_device_id rebellions_ids[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },
	{ }
};

static struct pci_driver rebellions_pci = {
	.name = "rebellions",
	.id_table = rebellions_ids,
	.probe = rebellions_probe,
	.remove = rebellions_remove,
};

static int __init rebellions_init(void)
{
	int error;

	if (fail_init)
		return -EIO;
	msleep(init_seconds * 1000);
#ifdef NEED_ABSENT
	if (rebellions_absent_symbol())
		return -ENODEV;
#endif
	device_memory = vmalloc_user(PAGE_SIZE);
	if (!device_memory)
		return -ENOMEM;
	rebellions_device.name = rebellions_core_name();
	error = misc_register(&rebellions_device);
	if (error)
		goto free_memory;
	error = load_firmware();
	if (!error)
		error = pci_register_driver(&rebellions_pci);
	if (!error)
		return 0;
	misc_deregister(&rebellions_device);
free_memory:
	vfree(device_memory);
	return error;
}

module_init(rebellions_init);

#ifndef NO_EXIT
static void __exit rebellions_exit(void)
{
	while (READ_ONCE(hang_exit))
		msleep(20);
	pci_unregister_driver(&rebellions_pci);
	misc_deregister(&rebellions_device);
	vfree(device_memory);
}

module_exit(rebellions_exit);
#endif

MODULE_DESCRIPTION("Stand-in accelerator driver");
MODULE_VERSION(DRIVER_VERSION);
MODULE_LICENSE("GPL");
