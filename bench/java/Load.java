import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Enumeration;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.LedgerEntry;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LastConfirmedAndEntry;
import org.apache.bookkeeper.conf.ClientConfiguration;

/**
 * Load by Apache's own client. A line on standard input is a command, `name key=value ...`; a line
 * of JSON on standard output is its answer, or `failed`, and the reason on standard error. The Python twin is bench/peers/our_load.py: the same
 * commands, the same keys, the same figures.
 */
public final class Load {
    private static final BookKeeper.DigestType DIGEST = BookKeeper.DigestType.CRC32C;
    private static final byte[] PASSWORD = "secret".getBytes();
    private static final int AT_ONCE = 32;
    private static final int READ_COUNT = 1000;
    private static final int READ_BYTES = 4 << 20;

    private final Map<String, BookKeeper> clients = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        Load load = new Load();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                System.out.println(load.obey(line.trim().split(" ")));
            } catch (Exception error) {
                error.printStackTrace();
                System.out.println("failed");
            }
            System.out.flush();
        }
        for (BookKeeper client : load.clients.values()) {
            client.close();
        }
        System.exit(0);
    }

    private String obey(String[] words) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int i = 1; i < words.length; i++) {
            int at = words[i].indexOf('=');
            given.put(words[i].substring(0, at), words[i].substring(at + 1));
        }
        switch (words[0]) {
            case "add":
                return add(given);
            case "add_singly":
                return addSingly(given);
            case "read":
                return read(given);
            case "recover":
                return recover(given);
            case "tail":
                return tail(given);
            default:
                throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    /** The same role always gets the same client, with connections of its own. */
    private BookKeeper client(Map<String, String> given, String role) throws Exception {
        String key = given.get("uri") + given.get("wire") + role;
        BookKeeper client = clients.get(key);
        if (client == null) {
            ClientConfiguration conf = new ClientConfiguration();
            conf.setMetadataServiceUri(given.get("uri"));
            conf.setUseV2WireProtocol("v2".equals(given.get("wire")));
            conf.setThrottleValue(0);
            conf.setReadEntryTimeout(60);
            conf.setAddEntryTimeout(60);  // a busy machine is slow, and nobody's failure
            if (role.equals("explicit")) {
                conf.setExplictLacInterval(number(given, "lac_ms"));
            }
            client = new BookKeeper(conf);
            clients.put(key, client);
        }
        return client;
    }

    private static int number(Map<String, String> given, String key) {
        return Integer.parseInt(given.get(key));
    }

    private static LedgerHandle create(BookKeeper client, Map<String, String> given)
            throws Exception {
        String[] shape = given.getOrDefault("shape", "3-3-2").split("-");
        return client.createLedger(Integer.parseInt(shape[0]), Integer.parseInt(shape[1]),
                Integer.parseInt(shape[2]), DIGEST, PASSWORD);
    }

    private static double cpuSeconds() {
        return ((com.sun.management.OperatingSystemMXBean)
                ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() / 1e9;
    }

    private interface Job {
        void run(int number) throws Exception;
    }

    /** A job for each number, some at a time: thousands of ledgers are not made one by one. */
    private static void forEach(int count, Job job) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(Math.min(count, AT_ONCE));
        try {
            List<Callable<Void>> jobs = new ArrayList<>();
            for (int i = 0; i < count; i++) {
                int number = i;
                jobs.add(() -> {
                    job.run(number);
                    return null;
                });
            }
            for (Future<Void> done : threads.invokeAll(jobs)) {
                done.get();
            }
        } finally {
            threads.shutdown();
        }
    }

    /** Adds to one or many ledgers in turn, so many outstanding, for a time or up to a count. */
    private String add(Map<String, String> given) throws Exception {
        int outstanding = number(given, "outstanding");
        long most = Long.parseLong(given.getOrDefault("entries", "" + Long.MAX_VALUE));
        double limit = Double.parseDouble(given.getOrDefault("seconds", "3600"));
        byte[] payload = new byte[number(given, "size")];
        LedgerHandle[] handles =
                new LedgerHandle[Integer.parseInt(given.getOrDefault("ledgers", "1"))];
        BookKeeper client = client(given, "writer");
        forEach(handles.length, i -> handles[i] = create(client, given));
        Semaphore room = new Semaphore(outstanding);
        AtomicReference<Integer> failed = new AtomicReference<>();
        double cpu = cpuSeconds();
        long start = System.nanoTime();
        long entries = 0;
        while (entries < most && (System.nanoTime() - start) / 1e9 < limit) {
            room.acquire();
            handles[(int) (entries % handles.length)].asyncAddEntry(payload, (code, h, id, c) -> {
                if (code != 0) {
                    failed.compareAndSet(null, code);
                }
                room.release();
            }, null);
            entries++;
        }
        room.acquire(outstanding);
        double seconds = (System.nanoTime() - start) / 1e9;
        cpu = cpuSeconds() - cpu;
        if (failed.get() != null) {
            throw new IllegalStateException("an add ended with code " + failed.get());
        }
        forEach(handles.length, i -> handles[i].close());
        return String.format(Locale.ROOT,
                "{\"entries\": %d, \"seconds\": %f, \"cpu_seconds\": %f, \"ledger\": %d}",
                entries, seconds, cpu, handles[0].getId());
    }

    private String addSingly(Map<String, String> given) throws Exception {
        byte[] payload = new byte[number(given, "size")];
        double limit = Double.parseDouble(given.get("seconds"));
        LedgerHandle handle = create(client(given, "writer"), given);
        List<Double> took = new ArrayList<>();
        long start = System.nanoTime();
        while ((System.nanoTime() - start) / 1e9 < limit) {
            long before = System.nanoTime();
            handle.addEntry(payload);
            took.add((System.nanoTime() - before) / 1e6);
        }
        handle.close();
        return times(took);
    }

    /** From the first entry to the last, again and again, for a time. */
    private String read(Map<String, String> given) throws Exception {
        double limit = Double.parseDouble(given.get("seconds"));
        long ledger = Long.parseLong(given.get("ledger"));
        boolean batch = "batch".equals(given.get("mode"));
        LedgerHandle handle = client(given, "reader").openLedger(ledger, DIGEST, PASSWORD);
        long last = handle.getLastAddConfirmed();
        long entries = 0;
        long bytes = 0;
        long start = System.nanoTime();
        double cpu = cpuSeconds();
        while ((System.nanoTime() - start) / 1e9 < limit) {
            ArrayDeque<CompletableFuture<Enumeration<LedgerEntry>>> ahead = new ArrayDeque<>();
            long asked = 0;
            long got = 0;
            while (got <= last) {
                // Batches tell their own end, so only one can be asked for at a time.
                while (asked <= last && ahead.size() < (batch ? 1 : 4)) {
                    CompletableFuture<Enumeration<LedgerEntry>> future = new CompletableFuture<>();
                    long until = Math.min(last, asked + READ_COUNT - 1);
                    if (batch) {
                        handle.asyncBatchReadEntries(asked, (int) (until - asked + 1), READ_BYTES,
                                (code, h, found, c) -> done(future, code, found), null);
                    } else {
                        handle.asyncReadEntries(asked, until,
                                (code, h, found, c) -> done(future, code, found), null);
                    }
                    ahead.add(future);
                    asked = until + 1;
                }
                Enumeration<LedgerEntry> found = ahead.poll().get(60, TimeUnit.SECONDS);
                while (found.hasMoreElements()) {
                    bytes += found.nextElement().getEntry().length;
                    got++;
                }
                if (batch) {
                    asked = got;
                }
            }
            entries += got;
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        cpu = cpuSeconds() - cpu;
        handle.close();
        return String.format(Locale.ROOT,
                "{\"entries\": %d, \"seconds\": %f, \"cpu_seconds\": %f, \"bytes\": %d}",
                entries, seconds, cpu, bytes);
    }

    private static void done(CompletableFuture<Enumeration<LedgerEntry>> future, int code,
            Enumeration<LedgerEntry> found) {
        if (code == 0) {
            future.complete(found);
        } else {
            future.completeExceptionally(new IllegalStateException("a read ended with " + code));
        }
    }

    /** Opening ledgers that their writers left open, one after the other. */
    private String recover(Map<String, String> given) throws Exception {
        byte[] payload = new byte[number(given, "size")];
        int entries = number(given, "entries");
        LedgerHandle[] handles = new LedgerHandle[number(given, "ledgers")];
        for (int i = 0; i < handles.length; i++) {
            handles[i] = create(client(given, "writer"), given);
            Semaphore done = new Semaphore(0);
            for (int n = 0; n < entries; n++) {
                handles[i].asyncAddEntry(payload, (code, h, id, c) -> done.release(), null);
            }
            done.acquire(entries);
        }
        List<Double> took = new ArrayList<>();
        for (LedgerHandle handle : handles) {
            long before = System.nanoTime();
            LedgerHandle opened = client(given, "reader").openLedger(
                    handle.getId(), DIGEST, PASSWORD);
            took.add((System.nanoTime() - before) / 1e6);
            if (opened.getLastAddConfirmed() != entries - 1) {
                throw new IllegalStateException("recovered to " + opened.getLastAddConfirmed());
            }
            opened.close();
        }
        return times(took);
    }

    /** From the call of an add to the entry in the hands of a reader that follows by long poll. */
    private String tail(Map<String, String> given) throws Exception {
        byte[] payload = new byte[number(given, "size")];
        int entries = number(given, "entries");
        LedgerHandle writer = create(client(given, "explicit"), given);
        writer.addEntry(payload);  // bookies know nothing of a ledger before its first entry
        LedgerHandle reader = client(given, "reader").openLedgerNoRecovery(
                writer.getId(), DIGEST, PASSWORD);
        AtomicLong[] sent = new AtomicLong[entries];
        Arrays.setAll(sent, n -> new AtomicLong());
        List<Double> took = new ArrayList<>();
        Thread follower = new Thread(() -> follow(reader, sent, took));
        follower.start();
        for (int n = 0; n < entries; n++) {
            Thread.sleep(number(given, "pause_ms"));
            sent[n].set(System.nanoTime());
            writer.addEntry(payload);  // entry n + 1
        }
        follower.join(60_000);
        if (follower.isAlive()) {
            throw new IllegalStateException("the tail has seen " + took.size());
        }
        writer.close();
        return times(took);
    }

    private static void follow(LedgerHandle reader, AtomicLong[] sent, List<Double> took) {
        try {
            for (int next = 0; next < sent.length;) {
                CompletableFuture<LastConfirmedAndEntry> future =
                        reader.readLastAddConfirmedAndEntryAsync(next + 1, 30_000, false);
                try (LastConfirmedAndEntry found = future.get(60, TimeUnit.SECONDS)) {
                    if (found.hasEntry()) {
                        took.add((System.nanoTime() - sent[next].get()) / 1e6);
                        next++;
                    }
                }
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    private static String times(List<Double> took) {
        double[] sorted = took.stream().mapToDouble(Double::doubleValue).sorted().toArray();
        return String.format(Locale.ROOT, "{\"count\": %d, \"p50_ms\": %f, \"p99_ms\": %f}",
                sorted.length, at(sorted, 0.5), at(sorted, 0.99));
    }

    private static double at(double[] sorted, double share) {
        return sorted[Math.min(sorted.length - 1, (int) (share * sorted.length))];
    }
}
