"""libtestudo-xfrm.so after a restart of the gateway: policies come back, and daemons hear that their SAs end.

usage: LD_PRELOAD=libtestudo-xfrm.so TESTUDO_XFRM=SOCKET python3 restart.py
"""

import errno
import glob
import select
import socket
import struct
import subprocess
import sys
import unittest

import shim
from shim import ACK, ERROR, NEWSA, NOOP, REQUEST, TIMEOUT_S, message, netlink, refusal

DELSA, NEWPOLICY, DELPOLICY, ACQUIRE, EXPIRE, UPDPOLICY, UPDSA = 0x11, 0x13, 0x14, 0x17, 0x18, 0x19, 0x1A
FLUSHPOLICY, MIGRATE = 0x1D, 0x21
GROUPS = 0b11  # ACQUIRE and EXPIRE
LOCAL, REMOTE = bytes([192, 0, 2, 1]) + bytes(12), bytes([192, 0, 2, 2]) + bytes(12)
INET, ESP = 2, 50


def sa_info(spi, reqid, inbound):
    to, source = (LOCAL, REMOTE) if inbound else (REMOTE, LOCAL)
    info = bytes(56) + to + struct.pack("=4sB3x", spi.to_bytes(4, "big"), ESP) + source + bytes(64 + 32 + 12 + 4)
    return info + struct.pack("=IHBBB7x", reqid, INET, 1, 0, 0)


def sa_id(spi, inbound):
    return (LOCAL if inbound else REMOTE) + struct.pack("=4sHBx", spi.to_bytes(4, "big"), INET, ESP)


def selector(port):
    return LOCAL + REMOTE + struct.pack(">HHHH", port, 0xFFFF, 0, 0) + struct.pack("=HBBB3xII", INET, 32, 32, 0, 0, 0)


def template(reqid):
    to = LOCAL + bytes(4) + bytes([ESP, 0, 0, 0])
    return struct.pack("=HH", 68, 5) + to + struct.pack("=H2x16sIB", INET, REMOTE, reqid, 1) + bytes(64 - 49)


def policy(port, reqid=1):
    return selector(port) + bytes(64 + 32 + 8) + bytes([1, 0, 0, 0]) + bytes(4) + template(reqid)


def policy_id(port):
    return selector(port) + struct.pack("=IB3x", 0, 1)


def acquire(reqid):
    return message(ACQUIRE, bytes(24 + 16 + 56 + 168 + 16) + template(reqid))


def welcome(identity):
    return message(NOOP, struct.pack("=III", 0x52465854, 1, 0) + bytes([identity]) * 16)


def limited(a_socket):
    """Python's own limit would ask poll(2) for room to send, which an epoll instance never says."""
    a_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", TIMEOUT_S, 0))
    return a_socket


def ticking():
    """Timers of this process that are set (proc(5), fdinfo)."""
    found = 0
    for name in glob.glob("/proc/self/fdinfo/*"):
        try:
            with open(name) as info:
                found += any(line.startswith("it_interval") and line.split(":")[1].strip() != "(0, 0)" for line in info)
        except FileNotFoundError:
            pass  # glob's own
    return found


class Restart(unittest.TestCase):
    def setUp(self):
        self.start(1)
        self.sequence = 100
        self.events, self.of_events = self.connected()
        self.heard(lambda: self.events.bind((0, GROUPS)))
        self.requests, self.of_requests = self.connected()

    def start(self, identity):
        self.gateway, self.identity = shim.Gateway(), identity

    def tearDown(self):
        for a_socket in (self.events, self.requests, self.of_events, self.of_requests):
            a_socket.close()
        self.gateway.close()

    def connected(self):
        client = limited(netlink())
        connection = self.gateway.accept()
        shim.hello_of(connection)
        connection.send(welcome(self.identity))
        return client, connection

    def heard(self, call, connection=None):
        told, connection = [], connection or self.of_events
        gateway = shim.threading.Thread(target=lambda: told.append(shim.hello_of(connection)))
        gateway.start()
        call()
        gateway.join(TIMEOUT_S)
        return told[0]

    def ask(self, kind, payload, error=0):
        """A request of the program, which the gateway answers."""
        self.sequence += 1
        request = message(kind, payload, self.sequence, flags=REQUEST | ACK)
        self.requests.send(request)
        self.assertEqual(self.of_requests.recv(65536), request)
        self.of_requests.send(refusal(error, request))
        self.assertEqual(self.requests.recv(65536)[:6], struct.pack("=IH", 36, ERROR))

    def negotiate(self):
        self.ask(UPDSA, sa_info(0xC001, 1, True))
        self.ask(NEWSA, sa_info(0xC002, 1, False))
        self.ask(NEWPOLICY, policy(80))

    def restart(self, identity, meanwhile=lambda: None):
        """Another gateway is there, and the socket for events has found it; what its library says."""
        self.gateway.close()
        self.of_events.close()
        self.of_requests.close()
        meanwhile()
        self.start(identity)
        self.of_events = self.reached_by(self.events)
        record = self.of_events.recv(65536)
        self.of_events.send(welcome(identity))
        return struct.unpack_from("=IQ", record, 36)

    def reached_by(self, events):
        """The connection of a socket for events, as soon as it has found this gateway."""
        # The end is seen first, and a moment later the new socket.
        self.gateway.listener.setblocking(False)
        while True:
            try:
                connection = self.gateway.listener.accept()[0]
                break
            except BlockingIOError:
                select.select([events], [], [], TIMEOUT_S)
                try:
                    events.recv(65536, socket.MSG_DONTWAIT)
                except OSError:
                    pass
        self.gateway.listener.settimeout(TIMEOUT_S)
        connection.settimeout(TIMEOUT_S)
        return connection

    def event(self):
        """What the program reads next from the socket for events."""
        while True:
            try:
                return self.events.recv(65536)
            except OSError as error:
                self.assertIn(error.errno, (errno.EAGAIN, errno.ENOBUFS))

    def nothing_comes(self):
        # Its own message is the next one: what would come before it has not come.
        self.of_events.send(b"mark")
        self.assertEqual(self.event(), b"mark")
        self.of_events.setblocking(False)
        self.assertRaises(BlockingIOError, self.of_events.recv, 65536)

    def test_policies_come_back_and_sas_are_about_to_end(self):
        self.negotiate()
        self.ask(NEWPOLICY, policy(81), errno.EEXIST)
        self.ask(NEWPOLICY, policy(82))
        self.ask(DELPOLICY, policy_id(82))
        self.ask(NEWPOLICY, policy(83, reqid=2))
        tunnels, lost_ms = self.restart(2)
        self.assertEqual((tunnels, lost_ms > 0), (1, True))
        expire = self.event()
        length, kind, _, _, port = struct.unpack_from("=IHHII", expire)
        self.assertEqual((length, kind, port, expire[16:240], expire[240]), (248, EXPIRE, 0, sa_info(0xC001, 1, True), 0))
        for payload in (policy(80), policy(83, reqid=2)):
            sent = self.of_events.recv(65536)
            self.assertEqual((sent[4:8], sent[16:]), (struct.pack("=HH", UPDPOLICY, REQUEST), payload))
        # Packets that ask for an SA which is renewed ask for nothing new.
        self.of_events.send(acquire(1))
        self.of_events.send(acquire(2))
        self.assertEqual(self.event(), acquire(2))
        self.nothing_comes()

    def test_what_is_renewed_is_asked_for_again(self):
        self.negotiate()
        self.restart(2)
        self.assertEqual(struct.unpack_from("=H", self.event(), 4)[0], EXPIRE)
        self.requests.close()
        self.requests = limited(netlink())
        self.of_requests = self.gateway.accept()
        shim.hello_of(self.of_requests)
        self.of_requests.send(welcome(2))
        self.ask(UPDSA, sa_info(0xC003, 1, True))
        self.ask(NEWSA, sa_info(0xC004, 1, False))
        self.ask(DELSA, sa_id(0xC001, True), errno.ESRCH)
        self.ask(DELSA, sa_id(0xC002, False), errno.ESRCH)
        self.of_events.send(acquire(1))
        self.assertEqual(self.event(), acquire(1))

    def test_what_has_moved_is_renewed_where_it_is(self):
        self.negotiate()
        moved = bytes([198, 51, 100, 1]) + bytes(12)
        for old, new in (((LOCAL, REMOTE), (moved, REMOTE)), ((REMOTE, LOCAL), (REMOTE, moved))):
            migrate = b"".join(old + new) + struct.pack("=BBHIHH", ESP, 1, 0, 1, INET, INET)
            payload = policy_id(80) + struct.pack("=HH", 4 + len(migrate), 17) + migrate
            self.ask(MIGRATE, payload, errno.ESRCH)
            self.ask(MIGRATE, payload)
        self.restart(2)
        expected = sa_info(0xC001, 1, True)
        self.assertEqual(self.event()[16:240], expected[:56] + moved + expected[72:])
        expected = policy(80)
        self.assertEqual(self.of_events.recv(65536)[16:], expected[:172] + moved + expected[188:])
        self.nothing_comes()

    def test_the_same_gateway_has_what_it_had(self):
        self.negotiate()
        self.restart(1)
        self.nothing_comes()

    def test_what_has_ended_does_not_come_back(self):
        self.negotiate()
        self.of_events.send(message(EXPIRE, sa_info(0xC001, 1, True) + bytes([1]) + bytes(7)))
        self.assertEqual(self.event()[240], 1)
        self.ask(DELSA, sa_id(0xC002, False))
        self.ask(FLUSHPOLICY, b"")
        self.assertEqual(self.restart(2)[0], 0)
        self.nothing_comes()

    def test_what_is_deleted_while_no_gateway_is_there_does_not_come_back(self):
        self.negotiate()
        self.ask(NEWPOLICY, policy(81))

        def meanwhile():
            gone = (DELPOLICY, policy_id(80)), (DELPOLICY, policy_id(81)), (DELSA, sa_id(0xC001, True)), (DELSA, sa_id(0xC002, False))
            for kind, payload in gone:
                with self.assertRaises(ConnectionRefusedError):
                    self.requests.send(message(kind, payload, 1, flags=REQUEST | ACK))

        self.assertEqual(self.restart(2, meanwhile)[0], 0)
        self.nothing_comes()

    def test_a_gateway_that_is_starting_is_asked_again(self):
        self.ask(NEWPOLICY, policy(80))
        self.restart(2)
        for answer in (errno.EBUSY, errno.EBUSY, errno.EINVAL):
            self.of_events.setblocking(False)
            while True:
                self.assertRaises(OSError, self.events.recv, 65536, socket.MSG_DONTWAIT)
                try:
                    sent = self.of_events.recv(65536)
                    break
                except BlockingIOError:
                    select.select([self.of_events, self.events], [], [], TIMEOUT_S)
            self.of_events.send(refusal(answer, sent))
        self.assertRaises(OSError, self.events.recv, 65536, socket.MSG_DONTWAIT)
        self.nothing_comes()

    def test_both_ways_are_one_renewal_however_many_there_are(self):
        for inbound in (False, True):
            for number in range(600):
                self.ask(UPDSA if inbound else NEWSA, sa_info(0x1000 + 2 * number + inbound, number, inbound))
        self.restart(2)
        told = [struct.unpack_from(">I", self.event(), 16 + 72)[0] for _ in range(600)]
        self.assertEqual(told, list(range(0x1001, 0x1000 + 1200, 2)))
        self.nothing_comes()

    def test_of_two_that_listen_neither_ticks_when_all_is_renewed(self):
        for number in range(100):
            self.ask(NEWSA, sa_info(0x1000 + number, number, False))
        second, of_second = self.connected()
        self.heard(lambda: second.bind((0, GROUPS)), of_second)
        self.restart(2, meanwhile=of_second.close)
        of_second = self.reached_by(second)
        of_second.recv(65536)
        of_second.send(welcome(2))
        told, steps = set(), 0
        while (len(told) < 100 or ticking()) and steps < 100:
            steps += 1
            for events in select.select([self.events, second], [], [], TIMEOUT_S)[0]:
                try:
                    told.add(struct.unpack_from(">I", events.recv(65536, socket.MSG_DONTWAIT), 16 + 72)[0])
                except OSError as error:
                    self.assertIn(error.errno, (errno.EAGAIN, errno.ENOBUFS))
        self.assertEqual((told, ticking()), (set(range(0x1000, 0x1000 + 100)), 0))
        second.close()
        of_second.close()

    def test_many_are_renewed_in_parts(self):
        for number in range(300):
            self.ask(NEWPOLICY, policy(number))
            self.ask(NEWSA, sa_info(0x1000 + number, number, False))
        self.restart(2)
        told = [struct.unpack_from(">I", self.event(), 16 + 72)[0] for _ in range(300)]
        self.assertEqual(told, list(range(0x1000, 0x1000 + 300)))
        # More than the connection has room for: what is left is sent as the program looks at its socket.
        sent = []
        self.of_events.setblocking(False)
        while len(sent) < 300:
            select.select([self.events, self.of_events], [], [], TIMEOUT_S)
            self.assertRaises(OSError, self.events.recv, 65536, socket.MSG_DONTWAIT)
            try:
                while True:
                    sent.append(self.of_events.recv(65536)[16:])
            except BlockingIOError:
                pass
        self.assertEqual(sent, [policy(number) for number in range(300)])
        self.nothing_comes()


def each_in_a_process_of_its_own():
    """What the library keeps is the process's: another test's would be renewed, too."""
    names = unittest.defaultTestLoader.getTestCaseNames(Restart)
    runs = [subprocess.run([sys.executable, *sys.orig_argv[1:], f"Restart.{name}"]) for name in names]
    return any(run.returncode for run in runs)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        unittest.main(verbosity=2)
    sys.exit(each_in_a_process_of_its_own())
