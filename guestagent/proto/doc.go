// Package proto is the language that a guest's agent and its host speak.
//
// One connection carries one operation at a time, and after some another, see
// [Op.Repeats]. The client sends a [Handshake], which
// names the protocol version, the generation of the machine it means and the
// operation with its request; the agent answers with a reply or an [Error],
// and the rest depends on the operation:
//
//	exec           client: Data* EOF Leave  agent: Reply, then Stdout, Stderr and Credit, then Exit or Leave
//	attach         client: Data* EOF        agent: Reply, then Stdout, Stderr and Credit, then Exit
//	wait           client: nothing          agent: Exit
//	open           client: ReadAt, WriteAt, Call, one at a time; each is answered by Data, EOF, Reply or Error
//	tar-out        client: nothing          agent: Reply Data* EOF, or Error at any point
//	tar-in         client: Data* EOF        agent: Reply, then Reply or Error
//	list, readdir, watch                    agent: Reply Item* EOF, or Error at any point
//	everything else                         agent: Reply or Error
//
// Output needs no credit: a client that does not read stops the connection
// and so, by way of a full pipe, the command. Input does need credit, so that
// the agent always reads and sees at once when its client is gone: a client
// may have at most [StdinWindow] bytes under way that no Credit frame gave
// back.
//
// A client whose connection ends takes its command along. To have it go on in
// the background it sends Leave instead, and reads on until the agent answers
// with Leave too, or with Exit if the command had ended: what is printed before
// that is this client's, and what comes after is kept for those who attach. An
// agent from before there was Leave treats it as it treats whatever it does not
// expect: the command ends, as it does when the client just goes. So it needed no
// new version, which would have made stored machines useless.
//
// Either side may be hostile. A frame says its length before its payload and
// is refused if that exceeds [MaxPayload]; memory is taken as bytes arrive and
// not as they are announced.
package proto
