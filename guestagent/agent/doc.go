// Package agent is the program inside the guest: it is the guest's PID 1, it
// answers the operations of package proto, and it is the guest's basic
// commands.
//
// A program calls [Main] first thing in its own main. On a host that returns
// at once and touches nothing; where the program was started as a guest's
// /init it never returns. So the initramfs of a guest needs no other file than
// the very program that starts it.
//
// If the kernel's command line has forkvm.root=BASE or forkvm.root=BASE,DATA, the
// names of disks, the agent makes the root file system of them: BASE is only
// read, and what is written goes to the ext4 on DATA, or to memory. The agent's
// commands are in /run/forkvm/bin then, last in the PATH of commands that bring
// none: a root without a shell has one, and any other has its own. Programs of
// the guest may run them by their path.
//
// The agent has one process of its program started ahead, in which the next of
// its own commands runs: a fork then answers without starting a program. What
// draws random names, and what is no command of the agent's, is started when it
// is asked for.
//
// [Serve] answers the same operations as an ordinary process on any listener.
package agent
