// Package balloon is the traditional memory balloon of virtio (section 5.5):
// by it a guest gives memory back to the host.
//
// There are two ways. With free page reporting (section 5.5.6.7) the driver
// names pages that nobody uses, all by itself; it may use them again at any
// time, and may then find zeros in them. With the balloon proper the host sets
// a target ([Device.SetTarget]) and the driver takes that many pages away from
// the guest, until the host lowers the target again or the guest runs out of
// memory. Either way the device calls [Env.Release] for the pages before it
// answers the driver, and touches them no more.
//
// What a hostile driver can do:
//
//	threat                              | answer
//	------------------------------------|------------------------------------
//	names what is not RAM, or no pages  | refused and counted
//	names pages twice in one request    | released once; refused and counted
//	names the rings of this device      | refused and counted
//	names memory that is in use         | loses its contents: its own loss
//	names scattered pages, to cost the  | pieces under Config.MinRange are
//	host a mapping for each             | answered but not released
//	names pages over and over, to keep  | a few thousand requests and pieces
//	the host busy                       | a second; the rest waits its turn
//	lies about the balloon's size       | Actual is what the driver says,
//	                                    | and nothing depends on it
package balloon
