// Package agent is the program inside the guest: it is the guest's PID 1, it
// answers the operations of package proto, and it is the guest's basic
// commands.
//
// A program calls [Main] first thing in its own main. On a host that returns
// at once and touches nothing; where the program was started as a guest's
// /init it never returns. So the initramfs of a guest needs no other file than
// the very program that starts it.
//
// The agent has one process of its program started ahead, in which the next of
// its own commands runs: a fork then answers without starting a program. What
// draws random names, and what is no command of the agent's, is started when it
// is asked for.
//
// [Serve] answers the same operations as an ordinary process on any listener.
package agent
