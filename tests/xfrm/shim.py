"""libtestudo-xfrm.so, as a program sees it that speaks netlink: Python's sockets, and iproute2's `ip xfrm`.

usage: LD_PRELOAD=libtestudo-xfrm.so TESTUDO_XFRM=SOCKET python3 shim.py

The gateway is a stand-in in this process: a Unix socket, which the library leaves alone.
"""

import ctypes
import errno
import fcntl
import os
import random
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import unittest

NETLINK_XFRM = 6
SOL_NETLINK, ADD_MEMBERSHIP, DROP_MEMBERSHIP, EXT_ACK = 270, 1, 2, 11
NOOP, ERROR, DONE = 1, 2, 3
NEWSA, GETSA, FLUSHSA, MIGRATE = 0x10, 0x12, 0x1C, 0x21
REQUEST, MULTI, ACK, DUMP = 1, 2, 4, 0x300
UDP_ENCAP, ESPINUDP = 100, 2
FILTER = 26  # to attach one, or to read it
LIBC = ctypes.CDLL(None, use_errno=True)
PATH = os.environ["TESTUDO_XFRM"]
TIMEOUT_S = 20


def message(kind, payload=b"", seq=7, port=0, flags=0):
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, seq, port) + payload


WELCOME = message(NOOP, struct.pack("=III16x", 0x52465854, 1, 0))


class Gateway:
    """Takes connections on the gateway's socket."""

    def __init__(self):
        if os.path.exists(PATH):
            os.unlink(PATH)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.settimeout(TIMEOUT_S)
        self.listener.bind(PATH)
        self.listener.listen(8)

    def accept(self):
        connection = self.listener.accept()[0]
        connection.settimeout(TIMEOUT_S)
        return connection

    def close(self):
        self.listener.close()
        os.unlink(PATH)


# What a daemon does before and after it speaks to the gateway; the marks of its sockets.
MARKS = """
import socket
policy = bytes(232)
early, own, plain, late = [socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) for _ in range(4)]
early.setsockopt(socket.IPPROTO_IPV6, 35, policy)
gone = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
gone.setsockopt(socket.IPPROTO_IPV6, 35, policy)
number = gone.fileno()
gone.close()
other = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
assert other.fileno() == number
if OWN:
    own.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, OWN)
own.setsockopt(socket.IPPROTO_IPV6, 35, policy)
client = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 6)
client.bind((0, 1))
try:
    late.setsockopt(socket.IPPROTO_IPV6, 35, policy)
    late.setsockopt(socket.IPPROTO_IP, 17, policy)
except PermissionError as error:
    print(error.errno)
print(*(each.getsockopt(socket.SOL_SOCKET, socket.SO_MARK) for each in (early, own, plain, other, late)))
"""


def refusal(error, request):
    """The answer to a request: an error, or 0 for its acknowledgement."""
    seq, port = struct.unpack_from("=II", request, 8)
    return message(ERROR, struct.pack("=i", -error) + request[:16], seq, port)


def hello_of(connection, before_ack=lambda: None):
    """What a connection says of its socket: port id, groups, options. Acknowledges it where that is wanted."""
    record = connection.recv(4096)
    length, kind, flags, _, _, magic, version, port, groups, options = struct.unpack("=IHHIIIIIII", record[:36])
    assert (length, len(record), kind, magic, version) == (64, 64, NOOP, 0x52465854, 1), record
    assert record[48:].rstrip(b"\0") == b"python3", record
    if flags & ACK:
        before_ack()
        connection.send(refusal(0, record))
    return port, groups, options


def netlink(flags=0):
    return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | flags, NETLINK_XFRM)


def join(client, group):
    """setsockopt(2) that lets other threads run meanwhile, as Python's own does not."""
    return LIBC.setsockopt(client.fileno(), SOL_NETLINK, ADD_MEMBERSHIP, ctypes.byref(ctypes.c_int(group)), 4)


def filter_of(a_socket):
    """How many instructions its filter has."""
    count = ctypes.c_uint(0)
    assert LIBC.getsockopt(a_socket.fileno(), socket.SOL_SOCKET, FILTER, None, ctypes.byref(count)) == 0
    return count.value


class Shim(unittest.TestCase):
    def setUp(self):
        self.gateway = Gateway()
        self.addCleanup(lambda: self.gateway and self.gateway.close())

    def connected(self, flags=0):
        client = netlink(flags)
        self.addCleanup(client.close)
        connection = self.gateway.accept()
        self.addCleanup(connection.close)
        hello_of(connection)
        return client, connection

    def heard(self, connection, call, before_ack=lambda: None):
        """What a gateway hears of a call that waits for its acknowledgement."""
        told = []
        gateway = threading.Thread(target=lambda: told.append(hello_of(connection, before_ack)))
        gateway.start()
        call()
        gateway.join(TIMEOUT_S)
        return told[0]

    def lost(self, call):
        with self.assertRaises(OSError) as raised:
            call()
        return raised.exception.errno

    def test_datagrams_go_through_unchanged_both_ways(self):
        client, connection = self.connected()
        client.bind((0, 0))
        port = hello_of(connection)[0]
        self.assertEqual(client.getsockname(), (port, 0))
        request = message(GETSA, b"x" * 40, port=port) + message(FLUSHSA, b"\1" + b"\0" * 7)
        self.assertEqual(client.sendto(request, (0, 0)), len(request))
        self.assertEqual(connection.recv(65536), request)
        for answer in (message(NEWSA, b"y" * 224), message(DONE, b"\0" * 4), b"z" * 32768):
            connection.send(answer)
            # As iproute2 does: first how long it is.
            length = client.recvmsg_into([bytearray(1)], 0, socket.MSG_PEEK | socket.MSG_TRUNC)[0]
            self.assertEqual(length, len(answer))
            received, _, _, sender = client.recvmsg(65536)
            self.assertEqual((received, sender), (answer, (0, 0)))

    def test_a_datagram_that_is_too_long_is_cut_as_netlink_cuts_it(self):
        client, connection = self.connected()
        connection.send(b"a" * 100)
        received, _, flags, _ = client.recvmsg(60)
        self.assertEqual((received, flags & socket.MSG_TRUNC), (b"a" * 60, socket.MSG_TRUNC))

    def test_groups_and_options_are_told(self):
        client, connection = self.connected()
        self.assertEqual(self.heard(connection, lambda: client.bind((4711, 0b101))), (4711, 0b101, 0))
        self.assertEqual(self.heard(connection, lambda: join(client, 4))[1], 0b1101)
        client.setsockopt(SOL_NETLINK, DROP_MEMBERSHIP, 1)
        self.assertEqual(hello_of(connection)[1], 0b1100)
        client.setsockopt(SOL_NETLINK, EXT_ACK, 1)
        self.assertEqual(hello_of(connection)[2], 1 << EXT_ACK)
        self.assertEqual(client.getsockname(), (4711, 0b1100))
        for group in (0, 33):
            self.assertEqual(self.lost(lambda: client.setsockopt(SOL_NETLINK, ADD_MEMBERSHIP, group)), errno.EINVAL)
        # Sizes of buffers are taken and mean nothing.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)

    def test_port_ids_differ(self):
        ports = set()
        for _ in range(3):
            client, connection = self.connected()
            client.bind((0, 0))
            ports.add(hello_of(connection)[0])
        self.assertEqual(len(ports), 3)
        self.assertNotIn(0, ports)

    def test_waiting_calls_see_what_comes(self):
        client, connection = self.connected()
        watches = {"poll": select.poll(), "epoll": select.epoll()}
        for watch in watches.values():
            watch.register(client, select.POLLIN)
            self.assertEqual(watch.poll(0), [])
        connection.send(b"event")
        for watch in watches.values():
            self.assertEqual(watch.poll(TIMEOUT_S * 1000 if watch is watches["poll"] else TIMEOUT_S)[0][0], client.fileno())
        self.assertEqual(select.select([client], [], [], TIMEOUT_S)[0], [client])
        self.assertEqual(client.recv(100), b"event")
        self.assertEqual(select.select([client], [], [], 0)[0], [])

    def test_nothing_to_receive_is_said_without_waiting(self):
        patient, _ = self.connected()
        self.assertEqual(self.lost(lambda: patient.recv(100, socket.MSG_DONTWAIT)), errno.EAGAIN)
        hasty, _ = self.connected(socket.SOCK_NONBLOCK)
        self.assertEqual(self.lost(lambda: hasty.recv(100)), errno.EAGAIN)

    def test_a_gateway_that_restarts_is_found_again_and_events_count_as_lost(self):
        client, connection = self.connected()
        self.heard(connection, lambda: client.bind((0, 0b11)))
        watch = select.epoll()
        watch.register(client, select.EPOLLIN)
        self.gateway.close()
        connection.close()
        self.assertEqual(len(watch.poll(TIMEOUT_S)), 1)
        self.assertEqual(self.lost(lambda: client.recv(100, socket.MSG_DONTWAIT)), errno.EAGAIN)
        # While it is away, the file is readable now and then, and a read says that there is nothing.
        self.assertEqual(watch.poll(0), [])
        self.assertEqual(len(watch.poll(TIMEOUT_S)), 1)
        self.assertEqual(self.lost(lambda: client.recv(100, socket.MSG_DONTWAIT)), errno.EAGAIN)
        self.assertEqual(watch.poll(0), [], "no spinning")
        self.assertEqual(self.lost(lambda: client.send(b"request")), errno.ECONNREFUSED)
        self.gateway = Gateway()
        self.assertEqual(len(watch.poll(TIMEOUT_S)), 1)
        self.assertEqual(self.lost(lambda: client.recv(100, socket.MSG_DONTWAIT)), errno.EAGAIN)
        again = self.gateway.accept()
        self.assertEqual(hello_of(again)[:2], (client.getsockname()[0], 0b11))
        again.send(WELCOME)
        self.assertEqual(len(watch.poll(TIMEOUT_S)), 1)
        self.assertEqual(self.lost(lambda: client.recv(100, socket.MSG_DONTWAIT)), errno.ENOBUFS)
        again.send(b"acquire")
        self.assertEqual(len(watch.poll(TIMEOUT_S)), 1)
        self.assertEqual(client.recv(100), b"acquire")
        again.close()

    def test_a_request_after_a_restart_is_sent_on_a_new_connection(self):
        client, connection = self.connected()
        self.heard(connection, lambda: client.bind((0, 1)))
        connection.close()
        self.assertEqual(client.send(b"request"), 7)
        again = self.gateway.accept()
        hello_of(again)
        self.assertEqual(again.recv(100), b"request")
        again.send(b"answer")
        self.assertEqual(client.recv(100), b"answer")
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.ENOBUFS, "of events in between nobody knows")
        again.close()

    def test_an_answer_that_will_not_come_ends_the_wait(self):
        client, connection = self.connected()
        client.send(b"request")
        threading.Thread(target=connection.close).start()
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.ENOBUFS)

    def test_a_request_whose_answer_is_lost_is_answered_with_an_error(self):
        client, connection = self.connected()
        client.bind((0, 0))
        port = hello_of(connection)[0]
        client.send(message(NEWSA, b"x" * 224, seq=8, flags=1 | 4))
        connection.recv(65536)
        connection.send(message(ERROR, bytes(4) + message(NEWSA, seq=8), seq=8, port=port))
        client.recv(100)
        # Two without an answer, one of them half answered.
        client.send(message(FLUSHSA, b"\0" * 8, seq=9, flags=1 | 4) + message(GETSA, seq=10, flags=1 | 0x300))
        connection.recv(65536)
        connection.send(message(NEWSA, b"y" * 224, seq=10, port=port, flags=2))
        client.recv(100)
        self.gateway.close()
        connection.close()
        watch = select.poll()
        watch.register(client, select.POLLIN)
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.ENOBUFS)
        # As charon: wait until it is readable, read, until the answer is there.
        for seq, kind in ((9, FLUSHSA), (10, GETSA)):
            self.assertEqual(len(watch.poll(0)), 1)
            peeked = client.recv(100, socket.MSG_PEEK)
            answer = client.recv(100)
            self.assertEqual(peeked, answer)
            length, is_error, _, of, to, code = struct.unpack_from("=IHHIIi", answer)
            self.assertEqual((length, is_error, of, to, code), (len(answer), ERROR, seq, port, -errno.ENOBUFS))
            self.assertEqual(struct.unpack_from("=IHHI", answer, 20), (16, kind, 0, seq))
        self.assertEqual(watch.poll(0), [], "each once")
        self.gateway = Gateway()

    def test_a_gateway_that_hangs_up_at_once_is_not_asked_without_end(self):
        client, connection = self.connected()
        connection.close()
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.ENOBUFS)
        watch = select.poll()
        watch.register(client, select.POLLIN)
        self.assertEqual(watch.poll(0), [], "it waits for the timer")
        self.assertEqual(len(watch.poll(TIMEOUT_S * 1000)), 1)
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.ENOBUFS)
        self.gateway.accept().close()

    def test_signals_that_write_find_no_lock(self):
        client, connection = self.connected()
        read, write = os.pipe2(os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        for _ in range(3000):
            client.send(b"request")
            connection.recv(100)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(-1)
        os.close(read)
        os.close(write)

    def test_a_socket_can_be_made_before_the_gateway_is_there(self):
        self.gateway.close()
        client = netlink()
        self.addCleanup(client.close)
        client.bind((0, 1))
        self.assertEqual(self.lost(lambda: client.recv(100, socket.MSG_DONTWAIT)), errno.EAGAIN)
        self.gateway = Gateway()
        received = []

        def wait():
            # Whatever poll(2) calls readable returns, and a socket may be called so by the timer.
            while (said := self.lost(lambda: client.recv(100))) == errno.EAGAIN:
                pass
            received.append(said)

        waiting = threading.Thread(target=wait)
        waiting.start()
        connection = self.gateway.accept()
        self.assertEqual(hello_of(connection)[1], 1)
        connection.send(WELCOME)
        waiting.join(TIMEOUT_S)
        self.assertEqual(received, [errno.ENOBUFS])
        connection.close()

    def test_a_number_that_became_another_files_is_left_alone(self):
        client, _ = self.connected()
        number = client.detach()
        # By a way of which the library does not know.
        self.assertEqual(LIBC.syscall({"x86_64": 3, "aarch64": 57}[os.uname().machine], number), 0)
        left, right = socket.socketpair()
        if left.fileno() != number:
            os.dup2(left.fileno(), number)
        right.send(b"other")
        with socket.socket(fileno=os.dup(number)) as other:
            self.assertEqual(other.recv(100), b"other")
        os.write(number, b"back")
        self.assertEqual(right.recv(100), b"back")
        for closed in (left, right):
            closed.close()

    def test_many_threads_may_use_one_socket(self):
        client, connection = self.connected()
        count = 200

        def echo():
            for _ in range(4 * count):
                connection.send(connection.recv(100))

        def ask():
            for _ in range(count):
                client.send(b"request")
                client.recv(100)

        threads = [threading.Thread(target=ask) for _ in range(4)] + [threading.Thread(target=echo)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
            self.assertFalse(thread.is_alive())

    def test_as_many_as_there_may_be_and_no_more(self):
        clients = []
        with self.assertRaises(OSError) as raised:
            for _ in range(65):
                clients.append(netlink())
                self.gateway.accept().close()
        self.assertEqual((raised.exception.errno, len(clients)), (errno.EMFILE, 64))
        for client in clients:
            client.close()
        netlink().close()

    def test_joining_a_group_waits_until_the_gateway_heeds_it(self):
        client, connection = self.connected()
        heeded = []
        events = [message(NEWSA, bytes([i]) * 40, seq=0) for i in range(3)]

        def before_ack():
            for event in events:
                connection.send(event)
            heeded.append(True)

        for call in (lambda: client.bind((0, 1)), lambda: join(client, 3)):
            self.heard(connection, call, before_ack)
            self.assertTrue(heeded.pop())
            # What came before waits in order; the acknowledgement is not the program's.
            watch = select.poll()
            watch.register(client, select.POLLIN)
            for event in events:
                self.assertEqual(len(watch.poll(0)), 1)
                self.assertEqual(client.recv(100, socket.MSG_PEEK), event)
                self.assertEqual(client.recv(100), event)
            self.assertEqual(watch.poll(0), [])

    def test_a_gateway_that_does_not_heed_costs_a_second_at_most(self):
        client, connection = self.connected()
        before = time.monotonic()
        client.bind((0, 1))
        self.assertTrue(0.9 < time.monotonic() - before < 5)
        hello = connection.recv(100)
        # Late, it is still none of the program's; its own with the same number are.
        request = message(FLUSHSA, seq=struct.unpack_from("=I", hello, 8)[0], flags=REQUEST | ACK)
        for record in (refusal(0, hello), refusal(0, request), refusal(0, hello)):
            connection.send(record)
        self.assertEqual(client.recv(100), refusal(0, request))
        self.assertEqual(client.recv(100), refusal(0, hello), "of one that is heeded nobody waits for more")
        self.assertEqual(self.lost(lambda: client.recv(100, socket.MSG_DONTWAIT)), errno.EAGAIN)

    def test_a_flood_before_the_acknowledgement_is_bounded_and_kept_in_order(self):
        client, connection = self.connected()
        count = 6000

        def flood():
            for i in range(count):
                connection.send(struct.pack("=I", i) * 20)

        gateway = threading.Thread(target=flood)
        gateway.start()
        client.bind((0, 1))
        self.assertTrue(gateway.is_alive(), "the rest waits where it is")
        for i in range(count):
            self.assertEqual(client.recv(100), struct.pack("=I", i) * 20)
        gateway.join(TIMEOUT_S)

    def test_no_file_descriptor_left_makes_nothing_spin(self):
        client, connection = self.connected(socket.SOCK_NONBLOCK)
        spare, limits = [], resource.getrlimit(resource.RLIMIT_NOFILE)

        def fill():
            while True:
                try:
                    spare.append(os.open("/dev/null", os.O_RDONLY))
                except OSError:
                    return

        watch = select.poll()
        watch.register(client, select.POLLIN)
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
        try:
            fill()
            self.assertEqual(self.lost(lambda: netlink()), errno.EMFILE)
            client.send(b"request")
            self.assertEqual(connection.recv(100), b"request")
            connection.send(b"answer")
            self.assertEqual(client.recv(100), b"answer")
            connection.close()
            self.assertEqual(self.lost(lambda: client.recv(100)), errno.ENOBUFS)
            fill()
            for _ in range(2):
                self.assertEqual(watch.poll(0), [])
                self.assertEqual(len(watch.poll(TIMEOUT_S * 1000)), 1)
                self.assertEqual(self.lost(lambda: client.recv(100)), errno.EAGAIN)
        finally:
            for number in spare:
                os.close(number)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        self.assertEqual(len(watch.poll(TIMEOUT_S * 1000)), 1)
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.ENOBUFS)
        self.gateway.accept().close()

    def test_an_answer_that_is_due_is_waited_for(self):
        client, connection = self.connected(socket.SOCK_NONBLOCK)
        # As pluto asks whether SAs can be moved: a request that moves none.
        probe = message(MIGRATE, bytes(64) + struct.pack("=HH", 84, 17) + bytes(80), seq=0, flags=REQUEST)
        gateway = threading.Thread(target=lambda: connection.send(refusal(errno.EINVAL, connection.recv(4096))))
        gateway.start()
        self.assertEqual(os.write(client.fileno(), probe), len(probe))
        self.assertEqual(client.recv(100), refusal(errno.EINVAL, probe))
        gateway.join(TIMEOUT_S)
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.EAGAIN)
        # From a gateway that does not answer, for a second in all.
        client.send(probe)
        before = time.monotonic()
        for _ in range(100):
            self.assertEqual(self.lost(lambda: client.recv(100)), errno.EAGAIN)
        self.assertTrue(0.9 < time.monotonic() - before < 5)
        # While it is away, there is an answer at once; no SA is moved then.
        self.gateway.close()
        self.gateway = None
        connection.close()
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.ENOBUFS)
        client.recv(100)
        self.assertEqual(client.send(probe), len(probe))
        self.assertEqual(client.recv(100)[:20], refusal(errno.ENOPROTOOPT, probe)[:20])
        moves = message(MIGRATE, b"\1" * 64, flags=REQUEST)
        self.assertEqual(self.lost(lambda: client.send(moves)), errno.ECONNREFUSED)

    def test_all_calls_that_send_and_receive(self):
        client, connection = self.connected()
        number = client.fileno()

        class Iovec(ctypes.Structure):
            _fields_ = [("base", ctypes.c_char_p), ("length", ctypes.c_size_t)]

        class Mmsghdr(ctypes.Structure):
            _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint), ("iov", ctypes.POINTER(Iovec)),
                        ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                        ("flags", ctypes.c_size_t), ("length", ctypes.c_uint)]

        def messages(*contents):
            of = lambda content: ctypes.pointer(Iovec(content, len(content)))
            return (Mmsghdr * len(contents))(*(Mmsghdr(None, 0, of(content), 1) for content in contents))

        self.assertEqual(os.writev(number, [b"one ", b"record"]), 10)
        self.assertEqual(LIBC.sendmmsg(number, messages(b"two", b"three"), 2, 0), 2)
        os.write(number, b"four")
        client.sendmsg([b"fi", b"ve"])
        for expected in (b"one record", b"two", b"three", b"four", b"five"):
            self.assertEqual(connection.recv(100), expected)
        self.assertEqual(self.lost(lambda: client.send(b"")), errno.ENODATA, "to the gateway it would be the end")

        parts = [bytearray(4), bytearray(20)]
        connection.send(b"one record")
        self.assertEqual((os.readv(number, parts), bytes(parts[0]), bytes(parts[1][:6])), (10, b"one ", b"record"))
        for content in (b"two", b"three"):
            connection.send(content)
        room = messages(bytes(5), bytes(5), bytes(5))
        self.assertEqual(LIBC.recvmmsg(number, room, 3, 0x10000, None), 2)
        self.assertEqual([(m.length, m.iov[0].base[:m.length]) for m in room[:2]], [(3, b"two"), (5, b"three")])
        # Debian's daemons are built with -D_FORTIFY_SOURCE=2.
        buffer = ctypes.create_string_buffer(10)
        calls = (lambda: LIBC.__getattr__("__read_chk")(number, buffer, 10, 10),
                 lambda: LIBC.__getattr__("__recv_chk")(number, buffer, 10, 10, 0),
                 lambda: LIBC.__getattr__("__recvfrom_chk")(number, buffer, 10, 10, 0, None, None))
        for call in calls:
            connection.send(b"fortified")
            self.assertEqual((call(), buffer.value), (9, b"fortified"))

    def test_copies_of_the_file_descriptor_are_the_same_socket(self):
        client, connection = self.connected()
        copies = [os.dup(client.fileno()), fcntl.fcntl(client, fcntl.F_DUPFD, 100),
                  fcntl.fcntl(client, fcntl.F_DUPFD_CLOEXEC, 100), LIBC.dup3(client.fileno(), 200, os.O_CLOEXEC),
                  os.dup2(client.fileno(), 201)]
        self.assertTrue(min(copies[1:3]) >= 100)
        self.assertEqual(copies[3:], [200, 201])
        client.close()
        for copy in copies:
            os.write(copy, b"request")
            self.assertEqual(connection.recv(100), b"request")
            connection.send(b"answer")
            self.assertEqual(select.select([copy], [], [], TIMEOUT_S)[0], [copy])
            self.assertEqual(os.read(copy, 100), b"answer")
        # One that takes another's number ends that one.
        other, other_connection = self.connected()
        other_number = other.detach()
        os.dup2(copies[0], other_number)
        self.assertEqual(other_connection.recv(100), b"")
        os.write(other_number, b"request")
        self.assertEqual(connection.recv(100), b"request")
        for copy in copies + [other_number]:
            os.close(copy)
        self.assertEqual(connection.recv(100), b"", "with the last of them it is closed")

    def test_its_other_files_are_not_the_programs_to_close(self):
        client, connection = self.connected()
        keep = client.fileno()
        child = os.fork()
        if child == 0:
            try:
                for number in range(3, 256):
                    if number != keep:
                        try:
                            os.close(number)
                        except OSError:
                            pass
                LIBC.close_range(3, keep - 1, 0)
                LIBC.closefrom(keep + 1)
                client.send(b"request")
                assert client.recv(100) == b"answer"
                LIBC.close_range(3, 4095, 0)
                assert not [number for number in os.listdir("/proc/self/fd") if 2 < int(number) < keep + 40 and
                            os.path.exists(f"/proc/self/fd/{number}")]
                os._exit(0)
            finally:
                os._exit(1)
        self.assertEqual(connection.recv(100), b"request")
        connection.send(b"answer")
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        client.send(b"request")
        self.assertEqual(connection.recv(100), b"request")

    def test_a_child_watches_for_itself(self):
        client, connection = self.connected()
        done, say_done = os.pipe()
        said, say = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                # The connection ends, and it does not look at its timer.
                connection.close()
                try:
                    client.recv(100)
                except OSError as error:
                    os.write(say, bytes([error.errno]))
                os.close(say_done)
                os.read(done, 1)
            finally:
                os._exit(0)
        connection.close()
        self.assertEqual(os.read(said, 1), bytes([errno.ENOBUFS]))
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.ENOBUFS)
        client.send(b"request")
        again = self.gateway.accept()
        hello_of(again)
        watch = select.poll()
        watch.register(client, select.POLLIN)
        self.assertEqual(watch.poll(2500), [])
        for number in (done, say_done, said, say):
            os.close(number)
        os.waitpid(child, 0)
        again.close()

    def test_options_are_those_of_netlink_there_or_away(self):
        client, connection = self.connected()

        def check():
            of = lambda name: client.getsockopt(socket.SOL_SOCKET, name)
            self.assertEqual((of(socket.SO_TYPE), of(socket.SO_DOMAIN), of(socket.SO_PROTOCOL)),
                             (socket.SOCK_RAW, socket.AF_NETLINK, NETLINK_XFRM))
            self.assertEqual(of(socket.SO_ERROR), 0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            self.assertEqual(of(socket.SO_RCVBUF), 2 << 20)
            self.assertEqual(client.getsockopt(SOL_NETLINK, EXT_ACK), 0)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("qq", 3, 500000))
            self.assertEqual(client.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16), struct.pack("qq", 3, 500000))
            self.assertEqual(self.lost(lambda: client.getsockopt(socket.IPPROTO_TCP, 1)), errno.ENOPROTOOPT)
            late = lambda: client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 0, 1000000))
            self.assertEqual(self.lost(late), errno.EDOM)

        check()
        self.gateway.close()
        self.gateway = None
        connection.close()
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.ENOBUFS)
        check()

    def test_limits_of_time_and_calls_that_may_not_wait(self):
        client, connection = self.connected()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 0, 50000))
        before = time.monotonic()
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.EAGAIN)
        self.assertGreater(time.monotonic() - before, 0.04)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("qq", 0, 0))
        for value in (1, 0, 1):
            fcntl.ioctl(client, termios.FIONBIO, struct.pack("i", value))
            self.assertEqual(bool(fcntl.fcntl(client, fcntl.F_GETFL) & os.O_NONBLOCK), bool(value))
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.EAGAIN)
        # A gateway that reads nothing: until there is no room.
        with self.assertRaises(BlockingIOError):
            while True:
                client.send(b"x" * 10000)
        fcntl.fcntl(client, fcntl.F_SETFL, 0)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("qq", 0, 50000))
        with self.assertRaises(BlockingIOError):
            client.send(b"x" * 10000)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("qq", 0, 0))
        reader = threading.Thread(target=lambda: [connection.recv(10000) for _ in range(2)])
        reader.start()
        self.assertEqual(client.send(b"x" * 10000), 10000)
        reader.join(TIMEOUT_S)

    def test_what_is_no_message_goes_through_and_ends_nothing(self):
        client, connection = self.connected()
        seed = int(os.environ.get("SEED", random.randrange(1 << 32)))
        print(f"SEED={seed}", file=sys.stderr)
        chance = random.Random(seed)
        lengths = [0, 1, 15, 16, 17, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF0, 0xFFFFFFFC, 0xFFFFFFFD, 0xFFFFFFFF]
        for length in lengths * 2 + [chance.randrange(1 << 32) for _ in range(500)]:
            rest = struct.pack("=HHII", chance.choice((NOOP, ERROR, DONE, NEWSA, MIGRATE)), chance.randrange(1 << 16),
                               chance.randrange(3), chance.randrange(3)) + chance.randbytes(chance.randrange(80))
            record = (struct.pack("=I", length) + rest)[:chance.randrange(1, 100)]
            client.send(record)
            self.assertEqual(connection.recv(200), record)
            connection.send(record)
            self.assertEqual(client.recv(200), record)
        # One that is longer than any is lost.
        connection.send(bytes(150000))
        self.assertEqual(self.lost(lambda: client.recv(100)), errno.ENOBUFS)
        connection.send(b"next")
        self.assertEqual(client.recv(100), b"next")

    def test_esp_in_udp_is_left_to_the_gateway(self):
        marked = bytes(4) + b"message of IKE"
        esp = struct.pack("!II", 0x1001, 1) + bytes(60)
        dropped = (esp, b"\xff", b"", bytes(3))
        v4, v6, udp = socket.AF_INET, socket.AF_INET6, socket.SOCK_DGRAM
        cases = ((v4, "127.0.0.1", v4, "127.0.0.1"), (v6, "::1", v6, "::1"), (v6, "::", v4, "127.0.0.1"))
        for family, at, sender_family, to in cases:
            with socket.socket(family, udp) as ike, socket.socket(sender_family, udp) as peer:
                ike.settimeout(TIMEOUT_S)
                if family == socket.AF_INET6:
                    ike.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                ike.bind((at, 0))

                def sent(*payloads):
                    for payload in payloads:
                        peer.sendto(payload, (to, ike.getsockname()[1]))
                    return ike.recv(200)

                self.assertEqual(sent(esp, marked), esp)
                self.assertEqual(ike.recv(200), marked)
                for _ in range(2):
                    ike.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, ESPINUDP)
                    self.assertEqual(ike.getsockopt(socket.IPPROTO_UDP, UDP_ENCAP), ESPINUDP)
                    self.assertEqual(sent(*dropped, marked), marked)
                ike.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, 0)
                self.assertEqual(sent(*dropped), esp)
                self.assertEqual([ike.recv(200) for _ in dropped[1:]], list(dropped[1:]))
                # A filter of the program's own is not touched: this one passes two bytes of each.
                ike.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, ESPINUDP)
                own = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 8 + 2))
                ike.setsockopt(socket.SOL_SOCKET, FILTER,
                               struct.pack("HxxxxxxP", 1, ctypes.addressof(own)))
                for value in (0, ESPINUDP):
                    self.assertEqual(sent(esp), esp[:2])
                    ike.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, value)
                self.assertEqual((sent(esp), filter_of(ike)), (esp[:2], 1))

    def test_esp_in_udp_may_be_left_to_the_kernel(self):
        for mode, count in (("kernel", 0), ("", 4)):
            said = subprocess.run([sys.executable, __file__, "encap"], env=os.environ | {"TESTUDO_UDP_ENCAP": mode},
                                  stdout=subprocess.PIPE, timeout=TIMEOUT_S)
            self.assertEqual((said.returncode, said.stdout), (0, b"%d" % count))

    def test_the_kernels_own_ipsec_is_not_asked_for(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ike:
            ike.setsockopt(socket.IPPROTO_IP, 17, b"\0" * 232)
            self.assertEqual(self.lost(lambda: ike.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, 1)), errno.ENOPROTOOPT)
        with socket.socket(socket.AF_INET) as no_udp:
            self.assertIn(self.lost(lambda: no_udp.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, ESPINUDP)),
                          (errno.ENOPROTOOPT, errno.EOPNOTSUPP))
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as ike:
            ike.setsockopt(socket.IPPROTO_IPV6, 35, b"\0" * 232)
            # Other options are the kernel's as ever.
            self.assertEqual(self.lost(lambda: ike.setsockopt(socket.IPPROTO_IP, 9999, 1)), errno.ENOPROTOOPT)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as routes:
            routes.bind((0, 0))
            self.assertNotEqual(routes.getsockname()[0], 0)

    def marks(self, namespaces, own):
        """What MARKS prints in namespaces of its own, beside a gateway whose mark is 7."""
        code = MARKS.replace("OWN", str(own))
        command = ["unshare", "--user", "--map-root-user", *namespaces, sys.executable, "-B", "-c", code]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            connection = self.gateway.accept()
            hello_of(connection)
            welcome = message(NOOP, struct.pack("=III16x", 0x52465854, 1, 7))
            hello_of(connection, lambda: connection.send(welcome))
            said, complaint = child.communicate(timeout=TIMEOUT_S)
            connection.close()
        return said.split(), complaint

    def test_sockets_that_pass_all_policies_have_the_gateways_mark(self):
        said, complaint = self.marks(["--net"], 9)
        self.assertEqual((said, complaint), (["7", "9", "0", "0", "7"], ""))

    def test_marks_that_are_not_permitted_are_told(self):
        said, complaint = self.marks([], 0)
        self.assertEqual(said, [str(errno.EPERM)] + ["0"] * 5)
        self.assertEqual(complaint.count("packets of IKE have no mark"), 3, complaint)

    def test_iproute2_speaks_through_it(self):
        add = ["ip", "xfrm", "state", "add", "src", "192.0.2.1", "dst", "192.0.2.2", "proto", "esp", "spi", "0x1001",
               "mode", "tunnel", "aead", "rfc4106(gcm(aes))", "0x" + "11" * 20, "128"]
        for error, expected in ((0, 0), (-errno.EEXIST, 2)):
            ip = subprocess.Popen(add, stderr=subprocess.PIPE)
            connection = self.gateway.accept()
            port, request = 0, b""
            while not request:
                record = connection.recv(65536)
                if struct.unpack_from("=H", record, 4)[0] == NOOP:
                    port = struct.unpack_from("=I", record, 24)[0]
                else:
                    request = record
            length, kind, _, seq, _ = struct.unpack_from("=IHHII", request)
            self.assertEqual((kind, length), (NEWSA, len(request)))
            self.assertIn(b"rfc4106(gcm(aes))\0", request)
            connection.send(message(ERROR, struct.pack("=i", error) + request[:16], seq, port))
            said = ip.communicate(timeout=TIMEOUT_S)[1].decode()
            connection.close()
            self.assertEqual(ip.returncode, expected, said)
            self.assertIn("File exists" if error else "", said)


def show_encap():
    """The filter that UDP_ENCAP leaves, whatever a kernel says that has no IPsec."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ike:
        try:
            ike.setsockopt(socket.IPPROTO_UDP, UDP_ENCAP, ESPINUDP)
        except OSError:
            pass
        print(filter_of(ike), end="")


if __name__ == "__main__" and sys.argv[1:] == ["encap"]:
    show_encap()
elif __name__ == "__main__":
    unittest.main(verbosity=2)
