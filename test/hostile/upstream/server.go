package upstream

import (
	"net"
	"sync"
)

// server accepts connections and knows which ones are open.
type server struct {
	listener net.Listener
	opening  sync.Mutex
	open     map[net.Conn]struct{}
}

// listen begins to accept on an address; serve runs for each connection, which is closed when it returns.
func (s *server) listen(address string, serve func(net.Conn)) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s.listener, s.open = listener, map[net.Conn]struct{}{}
	go s.accept(serve)
	return nil
}

func (s *server) accept(serve func(net.Conn)) {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.opening.Lock()
		s.open[conn] = struct{}{}
		s.opening.Unlock()
		go func() {
			serve(conn)
			_ = conn.Close()
			s.opening.Lock()
			delete(s.open, conn)
			s.opening.Unlock()
		}()
	}
}

// Close ends it and its connections.
func (s *server) Close() {
	_ = s.listener.Close()
	s.Hangup()
}

// Hangup ends its connections.
func (s *server) Hangup() {
	s.opening.Lock()
	defer s.opening.Unlock()
	for conn := range s.open {
		_ = conn.Close()
	}
}
