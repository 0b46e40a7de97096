package peer

// MaxName bounds a resource's name that a proxy says, in bytes. The longest that are made of objects have a host and a subset, or the names
// of a gateway, a port and a namespace, in them (253 and 63 each); an EnvoyFilter gives no longer ones.
const MaxName = 4 << 10
