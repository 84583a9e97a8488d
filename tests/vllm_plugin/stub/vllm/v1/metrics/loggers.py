class AggregateStatLoggerBase:
    pass
