// Package vsock is a virtio-vsock device (virtio 1.2 section 5.10) with both
// ends of the host's side in this process: connections to and from guest
// processes are plain [net.Conn] values.
//
//	dev, _ := vsock.New(vsock.Config{})
//	c, err := dev.Dial(ctx, 1024) // to a listener in the guest
//	l, err := dev.Listen(5000)    // for guests that connect to CID 2
//
// [Conn] implements [net.Conn] with deadlines, and half-close by CloseWrite
// and CloseRead. [Device.ServeUnix] lets other programs connect through a Unix
// socket.
//
// # How it runs
//
// The device has no resident goroutine. Everything happens under one mutex, on
// whatever thread brings the news: a vCPU that notified a queue, or a host
// goroutine that wrote, read or closed. Each does one pass of bounded length
// over the queues; if more is left, one goroutine is started that makes
// further passes and ends when nothing is left.
//
// The driver's TX packets are copied once, into the receive buffer of their
// connection. What a Write passes goes straight from the writer's slice to the
// driver's RX buffers, so Write returns when all of it is in guest memory, and
// blocks while the driver offers no buffer or the peer no credit.
//
// # Bounds
//
// A guest can make the device hold no more than [Config.MaxConns] connections
// with [Config.Buffer] bytes each, plus a fixed number of resets that wait for
// an RX buffer. If these are at their bound, no TX packet is consumed until
// the driver offers RX buffers (section 5.10.6.1.2). All other control packets
// are flags of their connection, so that any number of them takes no memory.
//
// # Captures and forks
//
// In a machine that is captured and goes on, nothing is lost: connections
// survive Quiesce and Resume. In a machine restored from the capture none
// survives: [Restore] makes a device that first publishes
// VIRTIO_VSOCK_EVENT_TRANSPORT_RESET, upon which the driver resets the guest's
// connections while its listeners live. RX rests, and Dial waits, until the
// driver gave the event's buffer back, which says that it handled the event:
// drivers serve the queues independently, and a connection made earlier could
// be taken for one of the old. Then the guest is sent an RST for each old
// connection, because packets about it can still be on their way in the RX
// ring. The driver's own requests are taken meanwhile and answered afterwards.
//
// There is one exception, for which no other way is as quick: if every
// connection is idle and was marked by the host's end, see [Conn.Keep], then
// there is nothing to reset, and they live on, see [Device.Inherited].
package vsock
