package bedload;

import java.util.EnumSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;

import org.apache.spark.SparkContext;
import org.apache.spark.api.java.function.Function3;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.execution.streaming.sources.RateStreamMicroBatchInputPartition;
import org.apache.spark.sql.execution.streaming.sources.RateStreamMicroBatchReaderFactory$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * A source that has never a row. Its offset counts the epochs that were asked for: it goes on by one if beat.py says
 * that something is due, and that epoch has one empty partition. Else it stays, and Spark plans nothing for it.
 *
 * SUBTLE: this is compiled in the driver, so no executor has it. All that travels with a task are classes of Spark's:
 * a partition of its rate source that ends where it begins, and what reads such. And no generics, and no lambdas: the
 * compiler is Spark's own, for the code that it generates.
 */
public class Beat implements TableProvider, SupportsRead, ScanBuilder, Scan, MicroBatchStream,
    SupportsTriggerAvailableNow {
  private static final Map ASKED = new ConcurrentHashMap();
  private static final long PAUSE_NANOS = 100000000L;

  private StructType schema;
  private Object asked;
  private String query;
  private long until = Long.MAX_VALUE;
  private long said = System.nanoTime() - PAUSE_NANOS;

  public Beat() {}

  private Beat(StructType schema, Object asked) {
    this.schema = schema;
    this.asked = asked;
  }

  /** A stream of rows of that schema. Spark finds a source by the name of its class, and this one is nowhere else. */
  public Dataset load(SparkSession session, StructType schema, Object asked, String id) {
    Thread thread = Thread.currentThread();
    ClassLoader before = thread.getContextClassLoader();
    ASKED.put(id, asked);
    thread.setContextClassLoader(Beat.class.getClassLoader());
    try {
      return session.readStream().format(Beat.class.getName()).schema(schema).option("id", id).load();
    } finally {
      thread.setContextClassLoader(before);
      ASKED.remove(id);
    }
  }

  public boolean supportsExternalMetadata() { return true; }

  public StructType inferSchema(CaseInsensitiveStringMap options) { return schema; }

  public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
    return new Beat(schema, ASKED.get(properties.get("id")));
  }

  public String name() { return "bedload beat"; }

  public StructType schema() { return schema; }

  public Set capabilities() { return EnumSet.of(TableCapability.MICRO_BATCH_READ); }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) { return this; }

  public Scan build() { return this; }

  public StructType readSchema() { return schema; }

  public String description() { return name(); }

  public String toString() { return name(); }

  /** Called when a query starts, before it reads its offset log. */
  public MicroBatchStream toMicroBatchStream(String place) {
    Beat stream = new Beat(schema, asked);
    stream.query = SparkContext.getOrCreate().getLocalProperty("sql.streaming.queryId");
    ((Consumer) asked).accept(stream.query);
    return stream;
  }

  public void prepareForTriggerAvailableNow() { until = System.currentTimeMillis(); }

  public ReadLimit getDefaultReadLimit() { return ReadLimit.allAvailable(); }

  public Offset latestOffset() { throw new UnsupportedOperationException(); }

  public Offset latestOffset(Offset start, ReadLimit limit) {
    boolean ends = until < Long.MAX_VALUE;
    // A query without a trigger asks every 10 ms.
    if (!ends && System.nanoTime() - said < PAUSE_NANOS) return start;
    Object due;
    try {
      due = ((Function3) asked).call(query, Math.min(System.currentTimeMillis(), until), ends);
    } catch (Exception error) {
      throw new RuntimeException(error);
    }
    if (((Boolean) due).booleanValue()) return new At(((At) start).number + 1);
    said = System.nanoTime();
    return start;
  }

  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    if (start.equals(end)) return new InputPartition[0];
    return new InputPartition[] {new RateStreamMicroBatchInputPartition(0, 1, 0L, 0L, 0L, 0.0)};
  }

  public PartitionReaderFactory createReaderFactory() { return RateStreamMicroBatchReaderFactory$.MODULE$; }

  public Offset initialOffset() { return new At(0); }

  public Offset deserializeOffset(String json) {
    return new At(Long.parseLong(json.substring(json.indexOf(':') + 1, json.indexOf('}')).trim()));
  }

  public void commit(Offset end) {}

  public void stop() {}

  public static class At extends Offset {
    final long number;

    At(long number) { this.number = number; }

    public String json() { return "{\"bedload beat\":" + number + "}"; }
  }
}
