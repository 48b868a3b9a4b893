// Package vmm boots virtual machines on KVM and forks them while they run.
//
// [Start] boots a kernel and returns when the agent in the guest answers.
// [VM.Fork] stops the machine for as long as it takes to copy what it has
// written lately, and starts children that go on from the same instruction,
// sharing all memory copy-on-write. [VM.Capture] and [Image.Start] are the two
// halves of it; [VM.Snapshot] and [Restore] the same by way of a store on disk.
// [VM.Reset] puts a child back to where it began.
//
// Files are named after what they hold: shell.go is a machine as KVM knows it,
// vcpu.go the thread of a vCPU, state.go what is saved of it and in which order
// it is restored, capture.go and writetrack.go how memory is captured, board.go
// the devices, agent.go what is agreed with the guest.
//
// # What it does to the process
//
// Each vCPU has an OS thread, which is interrupted by SIGURG, the signal that
// Go uses itself; a process that ignores it cannot start machines. With the
// first machine GOMAXPROCS is raised by 16 to 64, for a guest that runs holds
// back other goroutines of the program otherwise, up to 10 ms each time; not if
// the environment variable GOMAXPROCS is set. Machines are freed in the
// background, see [WaitFreed].
package vmm
