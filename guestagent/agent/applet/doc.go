// Package applet is the basic commands of a guest that has no files of its
// own: u-root's core commands, short ones for what people reach for besides,
// and a shell.
//
// They are for looking around, for gluing and for tests. They know the options
// in daily use, and refuse others.
package applet
